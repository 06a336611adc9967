"""What must be alike on all ranks after steps that they took together, as one rank reports it. Not collective.

It allocates next to nothing, since memory that is freed before the last block would change how later steps fault pages in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from backends.carried_tensors import trained_parameters

ELEMENTS = 32
"""How many elements of each parameter are compared; a step changes nearly all."""


@torch.no_grad()
def sampled(model: nn.Module) -> dict[str, list[float]]:
    """Some elements of each parameter that is trained and that every rank holds whole, the same ones on all ranks."""
    trained = trained_parameters(model)
    return {name: _elements(parameter) for name, parameter in trained if not hasattr(parameter, "to_local") and parameter.numel()}


def _elements(parameter: Tensor) -> list[float]:
    flat = parameter.detach().reshape(-1)
    some = flat[:: max(1, flat.numel() // ELEMENTS)][:ELEMENTS]
    whole = torch.view_as_real(some.resolve_conj()) if some.is_complex() else some
    values: list[float] = whole.double().reshape(-1).tolist()
    return values


def hyperparameters(optimizer: Optimizer) -> dict[str, list[float]]:
    """The numbers in all parameter groups, by name."""
    groups = optimizer.param_groups
    names = sorted({name for group in groups for name in group} - {"params"})
    return {name: list(_numbers(group.get(name) for group in groups)) for name in names}


def _numbers(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _numbers(value)
        elif isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
            yield float(value)
