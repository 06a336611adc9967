"""Values of a script as plain numbers: settings, those that must be equal on all ranks, losses,
fetched from their device after the timed steps, and count sketches of tensors.

Ringside's own ranks report and compare theirs in this way, too.

A sketch is linear, of a few numbers in float64, whose norm is about that of the tensor. Sketches
are those of Charikar, Chen and Farach-Colton (ICALP 2002). A script's have 16 places, those of
Ringside's own ranks 64. Element i goes with a random sign into place i mod 16 (E|sketch|² = |x|²
for any signs that are independent in pairs). The signs are those of Python's own generator, so that
they are equal on every device and with every version of torch. A tensor with no more elements than
places is its own sketch. A complex element counts as two.
"""

from __future__ import annotations

import math
import random
import sys
from typing import Any, Iterable, Iterator, Sequence

from ..recorder import Recorder, Row

MAX_CHARACTERS = 200
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


def plain(value: Any) -> Any:
    """A setting as a number, a string or a short list of them; a tensor of one element is its
    number.
    """
    torch: Any = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return plain(value.item()) if value.numel() == 1 else f"tensor of {value.numel()}"
    if value is None or isinstance(value, (bool, int, str)):
        return value[:MAX_CHARACTERS] if isinstance(value, str) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value[:16]]
    return (
        str(value)[:MAX_CHARACTERS]
        if type(value).__module__ in ("torch", "builtins")
        else type(value).__name__
    )


def hyperparameters(groups: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """The numbers in all parameter groups, by name."""
    names = sorted({name for group in groups for name in group} - {"params"})
    return {name: list(numbers(group.get(name) for group in groups)) for name in names}


def some_elements(parameter: Any, max_count: int) -> list[float]:
    """Some elements, the same ones on all ranks; a complex one counts as two.

    It allocates almost nothing: memory that is freed before the last block would change the page
    faults of later steps.
    """
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        flat = parameter.detach().reshape(-1)
        elements = flat[:: max(1, flat.numel() // max_count)][:max_count]
        if elements.is_complex():
            elements = torch.view_as_real(elements.resolve_conj())
        values: list[float] = elements.double().reshape(-1).tolist()
        return values


def numbers(values: Iterable[Any]) -> Iterator[float]:
    """All numbers in values and lists of them."""
    torch: Any = sys.modules["torch"]
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from numbers(value)
        elif isinstance(value, (int, float)) or (
            isinstance(value, torch.Tensor) and value.numel() == 1
        ):
            yield float(value)


def losses_of(recorder: Recorder) -> list[float]:
    """The values of the kept losses; NaN where a script has changed one since."""
    return [
        value if loss._version == version else math.nan
        for value, loss, version in zip(
            values_of(recorder.losses), recorder.losses, recorder.versions
        )
    ]


def values_of(losses: Sequence[Any]) -> list[float]:
    """Numbers of one-element tensors; those of a device are fetched at once."""
    if not losses:
        return []
    torch: Any = sys.modules["torch"]
    try:
        with torch.no_grad():
            values: list[float] = torch.stack(
                [loss.reshape(()).double() for loss in losses]
            ).tolist()
            return values
    except (RuntimeError, TypeError):  # on several devices, or overwritten by a CUDA graph
        return [value_of(loss) for loss in losses]


def value_of(loss: Any) -> float:
    """The number in a one-element tensor; NaN where it cannot be read any more."""
    try:
        return float(loss)
    except (RuntimeError, TypeError, ValueError):
        return math.nan


def means(rows: Sequence[Row], losses: Sequence[float]) -> list[float]:
    """Mean loss of each iteration; NaN where there was none."""
    mean_losses, begin = [], 0
    for row in rows:
        step_losses = losses[begin : begin + row.losses]
        mean_losses.append(sum(step_losses) / len(step_losses) if step_losses else math.nan)
        begin += row.losses
    return mean_losses


def synchronize(device: Any) -> None:
    """Wait for a device's work; nothing on a CPU."""
    if device is not None and device.type != "cpu":
        module = getattr(sys.modules["torch"], device.type, None)
        getattr(module, "synchronize", lambda: None)()


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
            values: list[float] = _as_float64(flat, is_state).tolist()
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


def _as_float64(elements: Any, is_state: bool) -> Any:
    return elements.double().nan_to_num(**REPLACEMENTS) if is_state else elements.double()


def _folded(flat: Any, size: int, is_state: bool) -> list[float]:
    torch: Any = sys.modules["torch"]
    signs = signs_on(flat.device)
    total = torch.zeros(size, dtype=torch.float64, device=flat.device)
    for number, begin in enumerate(range(0, flat.numel(), CHUNK)):
        part = _as_float64(flat[begin : begin + CHUNK], is_state)
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
