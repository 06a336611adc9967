"""Finds the tensors in a batch or in a model's output, however nested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor, sparse or not, holds neither NaN nor infinity. Waits for the device."""
    return bool(stored_values(tensor).isfinite().all())


def stored_values(tensor: Tensor) -> Tensor:
    """The elements of a tensor; of a sparse one those that are there."""
    found = tensor.detach()
    return found.coalesce().values() if found.is_sparse else found


def tensors_in(value: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor with the expression that gives it, such as ``batch[0]`` or ``batch['mask']``."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):  # as Hugging Face's batches and outputs are
        for key, inner in value.items():
            yield from tensors_in(inner, f"{name}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from tensors_in(inner, f"{name}[{number}]")
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name), f"{name}.{field.name}")
