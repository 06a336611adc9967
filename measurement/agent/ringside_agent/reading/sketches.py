"""Count sketches of tensors in float64: linear, of few numbers, whose norm is about that of the tensor.

A script's have at most 16, those of Ringside's own ranks 64 (``protocol.sketches``). Element i goes with a random sign into place
i mod 16 (E|sketch|² = |x|² for any signs that are independent in pairs). The signs are those of Python's own generator, so that
they are alike on every device and under every version of torch. Tensors of up to 16 elements are their own.
"""

from __future__ import annotations

import random
import sys
from typing import Any, Callable

SIZE = 16
CHUNK = 1 << 16
MOST_DENSE = 1 << 24
"""Elements of a sparse tensor that is sketched as a dense one."""
_signs: dict[str, Any] = {}


def sketch(tensor: Any) -> list[float]:
    """float64 [up to SIZE]. On a device this waits for it.

    Raises:
        ValueError: it is sparse and large, or of a kind that has no numbers.
    """
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        flat = _elements(tensor)
        values: list[float] = flat.double().tolist() if flat.numel() <= SIZE else folded(flat, SIZE)
        return values


def folded(flat: Any, size: int, as_numbers: Callable[[Any], Any] | None = None) -> list[float]:
    """float64 [size], a divisor of CHUNK, of a flat tensor. ``as_numbers`` makes float64 of a part; None: as it is."""
    torch: Any = sys.modules["torch"]
    signs = signs_on(flat.device)
    total = torch.zeros(size, dtype=torch.float64, device=flat.device)
    for number, begin in enumerate(range(0, flat.numel(), CHUNK)):
        part = flat[begin : begin + CHUNK]
        part = part.double() if as_numbers is None else as_numbers(part)
        shift, sign = shift_of(number)
        part = part * signs[shift : shift + part.numel()]
        missing = -part.numel() % size
        if missing:
            part = torch.cat([part, part.new_zeros(missing)])
        total += sign * part.view(-1, size).sum(0)
    found: list[float] = total.tolist()
    return found


def _elements(tensor: Any) -> Any:
    torch: Any = sys.modules["torch"]
    found = tensor.detach()
    if found.layout is not torch.strided:
        if found.numel() > MOST_DENSE:
            raise ValueError("it is sparse and large")
        found = found.to_dense()
    if found.is_complex():
        found = torch.view_as_real(found.resolve_conj())
    return found.reshape(-1)


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
        found = (whole[:, None] >> torch.arange(8)) & 1
        _signs[key] = (1 - 2 * found.reshape(-1)).double().to(device)
    return _signs[key]
