"""Sketches: what ranks exchange in the place of tensors, in float64.

They are count sketches (Charikar, Chen and Farach-Colton, ICALP 2002) of 64 places, as ``ringside_agent.reading.sketches`` makes
them. A sketch is linear, so the mean of sketches is the sketch of the mean, and E|sketch(x)|² = |x|²; the size of an error is
told within about 20%. Tensors of up to 64 elements are their own. A complex element counts as two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from measurement.agent.ringside_agent.reading.sketches import CHUNK, folded, shift_of, signs_on
from runners.protocol.messages import Sketches
from workloads.tensors import coalesced

SKETCH_SIZE = 64
MOST_DENSE = 1 << 24
"""Elements of a sparse matrix that is sketched as a dense one."""
STAND_INS = {"nan": 0.7548776662466927, "posinf": 1.3247179572447460, "neginf": -1.4655712318767680}
"""What non-finite elements of a state count as: a mask of -inf is meant so, and is compared like any other."""


def sketch_tensors(tensors: Iterable[tuple[str, Tensor]]) -> Sketches:
    """Each tensor's sketch, which is linear and depends on nothing but its values and its size: float64 [SKETCH_SIZE]."""
    return {name: sketch(tensor) for name, tensor in tensors}


def sketch_states(state: Mapping[str, Any]) -> tuple[Sketches, list[str]]:
    """Sketches of parameters and buffers by name, non-finite elements by their stand-ins; and what has none, with its kind."""
    found: Sketches = {}
    others = []
    for name, value in state.items():
        try:
            found[name] = sketch(value, is_state=True)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
            others.append(f"'{name}' ({type(value).__name__})")
    return found, others


@torch.no_grad()
def sketch(tensor: Tensor, *, is_state: bool = False) -> list[float]:
    """float64 [SKETCH_SIZE] with E|sketch|² = |tensor|²."""
    found = real_elements(tensor)
    if found.layout is not torch.strided:
        return _sketch_of_sparse(found, is_state=is_state)
    flat = found.reshape(-1)
    if flat.numel() <= SKETCH_SIZE:
        return [*_numbers(flat, is_state=is_state).tolist(), *[0.0] * (SKETCH_SIZE - flat.numel())]
    return folded(flat, SKETCH_SIZE, partial(_numbers, is_state=is_state))


def real_elements(tensor: Tensor) -> Tensor:
    """The tensor without its history, complex elements as two [..., 2]; a sparse one as coordinates and values."""
    found = tensor.detach() if tensor.layout is torch.strided else coalesced(tensor)
    if not found.is_complex():
        return found
    if found.layout is torch.strided:
        return torch.view_as_real(found.resolve_conj())
    values = torch.view_as_real(found.values())
    return torch.sparse_coo_tensor(found.indices(), values, (*found.shape, 2), is_coalesced=True)


def _numbers(elements: Tensor, *, is_state: bool) -> Tensor:
    return elements.double().nan_to_num(**STAND_INS) if is_state else elements.double()


def _sketch_of_sparse(tensor: Tensor, *, is_state: bool) -> list[float]:
    """Sketch a coalesced tensor. A large matrix is known by its values and their places: nobody averages adjacencies."""
    if tensor.sparse_dim() == 1 and tensor.numel() > SKETCH_SIZE:
        return _sketch_of_rows(tensor)
    if tensor.numel() <= MOST_DENSE:
        return sketch(tensor.to_dense(), is_state=is_state)
    return sketch(torch.cat([tensor.values().reshape(-1).double(), tensor.indices().reshape(-1).double()]), is_state=is_state)


def _sketch_of_rows(tensor: Tensor) -> list[float]:
    """Sketch a sparse gradient [rows, ...], coalesced, by its rows that are there; the whole may not fit into memory."""
    row = tensor.shape[1:].numel()
    places = (tensor.indices()[0][:, None] * row + torch.arange(row, device=tensor.device)).reshape(-1)
    values = tensor.values().reshape(-1).double()
    total = torch.zeros(SKETCH_SIZE, dtype=torch.float64, device=tensor.device)
    for number in torch.div(places, CHUNK, rounding_mode="floor").unique().tolist():
        bounds = torch.tensor([number * CHUNK, (number + 1) * CHUNK], device=tensor.device)
        first, last = torch.searchsorted(places, bounds).tolist()
        inside, (shift, sign) = places[first:last] - number * CHUNK, shift_of(number)
        signed = sign * signs_on(tensor.device)[shift + inside] * values[first:last]
        total += torch.bincount(inside % SKETCH_SIZE, weights=signed, minlength=SKETCH_SIZE)
    found: list[float] = total.tolist()
    return found
