"""Count sketches of tensors in float64: linear, of a few numbers, whose norm is about that of the
tensor.

They are those of Charikar, Chen and Farach-Colton (ICALP 2002). A script's have 16 places, those of
Ringside's own ranks 64. Element i goes with a random sign into place i mod 16 (E|sketch|² = |x|²
for any signs that are independent in pairs). The signs are those of Python's own generator, so that
they are equal on every device and with every version of torch. A tensor with no more elements than
places is its own sketch. A complex element counts as two.
"""

from __future__ import annotations

import random
import sys
from typing import Any

SIZE = 16
CHUNK = 1 << 16
MAX_DENSE = 1 << 24
"""Elements of a sparse tensor that is sketched as a dense one."""
REPLACEMENTS = {
    "nan": 0.7548776662466927,
    "posinf": 1.3247179572447460,
    "neginf": -1.4655712318767680,
}
"""Values that replace non-finite elements of a state: a mask of -inf is intended, and is compared
like any other."""
_signs: dict[str, Any] = {}


def sketch(tensor: Any, size: int = SIZE, *, is_state: bool = False) -> list[float]:
    """float64 [up to size], a divisor of CHUNK, with E|sketch|² = |tensor|². On a device this waits
    for it.

    Args:
        tensor: of any numeric dtype and any layout. A large sparse matrix is sketched by its values
            and their places.
        size: numbers of the sketch, at most.
        is_state: whether non-finite elements are replaced by ``REPLACEMENTS``.
    """
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        elements = real_elements(tensor)
        if elements.layout is not torch.strided:
            if elements.sparse_dim() == 1 and elements.numel() > size:
                return _sketch_of_rows(elements, size)
            is_huge = elements.numel() > MAX_DENSE
            parts = [elements.values(), elements.indices()] if is_huge else [elements.to_dense()]
            elements = torch.cat([part.reshape(-1).double() for part in parts])
        flat = elements.reshape(-1)
        if flat.numel() <= size:
            values: list[float] = _numbers(flat, is_state).tolist()
            return values
        return _folded(flat, size, is_state)


def real_elements(tensor: Any) -> Any:
    """The tensor without its history, complex elements as two [..., 2]; a sparse one as coordinates
    and values.
    """
    torch: Any = sys.modules["torch"]
    elements = tensor.detach()
    if elements.is_mkldnn:
        elements = elements.to_dense()
    if elements.layout is torch.strided:
        return torch.view_as_real(elements.resolve_conj()) if elements.is_complex() else elements
    elements = elements.to_sparse().coalesce()
    if not elements.is_complex():
        return elements
    values = torch.view_as_real(elements.values())
    return torch.sparse_coo_tensor(elements.indices(), values, (*elements.shape, 2)).coalesce()


def _numbers(elements: Any, is_state: bool) -> Any:
    return elements.double().nan_to_num(**REPLACEMENTS) if is_state else elements.double()


def _folded(flat: Any, size: int, is_state: bool) -> list[float]:
    torch: Any = sys.modules["torch"]
    signs = signs_on(flat.device)
    total = torch.zeros(size, dtype=torch.float64, device=flat.device)
    for number, begin in enumerate(range(0, flat.numel(), CHUNK)):
        part = _numbers(flat[begin : begin + CHUNK], is_state)
        shift, sign = shift_of(number)
        part = part * signs[shift : shift + part.numel()]
        missing = -part.numel() % size
        if missing:
            part = torch.cat([part, part.new_zeros(missing)])
        total += sign * part.view(-1, size).sum(0)
    sums: list[float] = total.tolist()
    return sums


def _sketch_of_rows(tensor: Any, size: int) -> list[float]:
    """Sketch a sparse gradient [rows, ...], coalesced, by its stored rows; the whole may not fit
    into memory.
    """
    torch: Any = sys.modules["torch"]
    row = tensor.shape[1:].numel()
    places = (tensor.indices()[0][:, None] * row + torch.arange(row, device=tensor.device)).reshape(
        -1
    )
    values = tensor.values().reshape(-1).double()
    total = torch.zeros(size, dtype=torch.float64, device=tensor.device)
    for number in torch.div(places, CHUNK, rounding_mode="floor").unique().tolist():
        bounds = torch.tensor([number * CHUNK, (number + 1) * CHUNK], device=tensor.device)
        first, last = torch.searchsorted(places, bounds).tolist()
        inside, (shift, sign) = places[first:last] - number * CHUNK, shift_of(number)
        signed = sign * signs_on(tensor.device)[shift + inside] * values[first:last]
        total += torch.bincount(inside % size, weights=signed, minlength=size)
    sums: list[float] = total.tolist()
    return sums


def shift_of(number: int) -> tuple[int, int]:
    """Where in the signs a chunk's begin, and the chunk's own sign."""
    mixed = (number * 0x9E3779B1 + 0x7F4A7C15) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x85EBCA77) & 0xFFFFFFFF
    mixed ^= mixed >> 13
    return mixed % CHUNK, 1 if mixed >> 31 else -1


def signs_on(device: Any) -> Any:
    """float64 [2 * CHUNK] of 1 and -1, the same everywhere."""
    torch: Any = sys.modules["torch"]
    key = str(device)
    if key not in _signs:
        bits = random.Random(39).getrandbits(2 * CHUNK)
        text = bits.to_bytes(2 * CHUNK // 8, "little")
        whole = torch.tensor(list(text), dtype=torch.int64)
        signs = (whole[:, None] >> torch.arange(8)) & 1
        _signs[key] = (1 - 2 * signs.reshape(-1)).double().to(device)
    return _signs[key]
