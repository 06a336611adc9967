"""Sketches: what ranks exchange in the place of tensors, in float64.

They are count sketches (Charikar, Chen and Farach-Colton, ICALP 2002), in which each element goes with a random sign into one of
64 places. A sketch is linear, so the mean of sketches is the sketch of the mean, and E|sketch(x)|² = |x|²; the size of an error is
told within about 20%. Tensors of up to 64 elements are their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from runners.protocol.messages import Sketches

SKETCH_SIZE = 64
CHUNK = 1 << 18


def sketch_tensors(tensors: Iterable[tuple[str, Tensor]]) -> Sketches:
    """Each tensor's sketch, which is linear and depends on nothing but its values and its size: float64 [SKETCH_SIZE]."""
    return {name: sketch(tensor) for name, tensor in tensors}


@torch.no_grad()
def sketch(tensor: Tensor) -> list[float]:
    """float64 [SKETCH_SIZE] with E|sketch|² = |tensor|². One random number for each element, at any size of the sketch."""
    if tensor.is_sparse:
        return _sketch_of_rows(tensor.detach().coalesce())
    flat = tensor.detach().reshape(-1)
    if flat.numel() <= SKETCH_SIZE:
        return [*flat.double().tolist(), *[0.0] * (SKETCH_SIZE - flat.numel())]
    total = torch.zeros(SKETCH_SIZE, dtype=torch.float64, device=flat.device)
    for begin, drawn in _drawn(flat.numel(), flat.device):
        total += _summed(flat[begin : begin + len(drawn)], drawn)
    values: list[float] = total.tolist()
    return values


def _drawn(elements: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yield the random numbers of a tensor's elements, chunk by chunk, each with the number of its first element."""
    generator = torch.Generator().manual_seed(elements)
    for begin in range(0, elements, CHUNK):
        yield begin, torch.randint(2 * SKETCH_SIZE, (min(CHUNK, elements - begin),), generator=generator).to(device)


def _summed(elements: Tensor, drawn: Tensor) -> Tensor:
    """float64 [SKETCH_SIZE]: each element with its sign in its place."""
    return torch.bincount(drawn >> 1, weights=elements.double() * (1 - 2 * (drawn & 1)), minlength=SKETCH_SIZE)


def _sketch_of_rows(tensor: Tensor) -> list[float]:
    """The same of a sparse gradient [rows, ...], coalesced, by its rows that are there; the whole may not fit into memory."""
    row = tensor.shape[1:].numel()
    if tensor.numel() <= SKETCH_SIZE or tensor.sparse_dim() != 1:
        return sketch(tensor.to_dense())
    places = (tensor.indices()[0][:, None] * row + torch.arange(row, device=tensor.device)).reshape(-1)
    values = tensor.values().reshape(-1)
    total = torch.zeros(SKETCH_SIZE, dtype=torch.float64, device=tensor.device)
    for begin, drawn in _drawn(tensor.numel(), tensor.device):
        bounds = torch.tensor([begin, begin + len(drawn)], device=tensor.device)
        first, last = torch.searchsorted(places, bounds).tolist()
        total += _summed(values[first:last], drawn[places[first:last] - begin])
    found: list[float] = total.tolist()
    return found
