"""Finds the tensors in a batch or in a model's output, however nested and however stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PLAIN = (str, bytes, bool, int, float, complex, np.ndarray, np.generic)
"""Data in a batch other than tensors."""
SEALED = (type, nn.Module, torch.Generator)
"""Objects that are not searched for data."""
MAX_DEPTH = 8
"""Levels of nested objects: a batch may refer to its data set."""


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor, sparse or not, holds neither NaN nor infinity. Waits for the device."""
    return all(bool(part.isfinite().all()) for part in dense_parts(tensor))


def stored_values(tensor: Tensor) -> Tensor:
    """The elements of a tensor; of a sparse one those that are stored."""
    *_, values = dense_parts(tensor)
    return values


def dense_parts(tensor: Tensor) -> list[Tensor]:
    """The dense tensors that store a tensor: indices and then values of a sparse one, the rows of a
    nested one.

    Two tensors of one layout are equal where all of these are.
    """
    parts = tensor.detach()
    if parts.is_nested:
        return [part for row in parts.unbind() for part in dense_parts(row)]
    if parts.is_quantized:
        return [parts.int_repr(), parts.dequantize()]
    if parts.is_mkldnn or parts.layout is torch.strided:
        return [parts.to_dense() if parts.is_mkldnn else parts]
    whole = coalesced(parts)
    return [whole.indices(), whole.values()]


def coalesced(tensor: Tensor) -> Tensor:
    """A sparse tensor of any layout in COO format, coalesced."""
    return tensor.detach().to_sparse().coalesce()


def bytes_in(part: Tensor) -> Tensor:
    """uint8 [bytes]: the memory of a dense tensor's elements, in order; NaN equals NaN there."""
    return part.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def tensors_in(value: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor with its expression, such as ``batch[0]`` or ``batch['mask']``."""
    return ((where, leaf) for where, leaf in leaves_in(value, name) if isinstance(leaf, Tensor))


def leaves_in(value: Any, name: str = "batch") -> Iterator[tuple[str, Any]]:
    """Yield each tensor, array, text and number in a batch with its expression."""
    return _leaves(value, name, inside=())


def _leaves(value: Any, name: str, *, inside: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (Tensor, *PLAIN)):
        yield name, value
    elif len(inside) < MAX_DEPTH and id(value) not in inside:
        for where, part in _parts(value, name):
            yield from _leaves(part, where, inside=(*inside, id(value)))


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The parts of a container.

    Hugging Face's batches are mappings; PyTorch Geometric's have attributes.
    """
    if isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{name}[{number}]", inner) for number, inner in enumerate(value))
    elif isinstance(value, Set):
        yield from (
            (f"{name}[{number}]", inner) for number, inner in enumerate(sorted(value, key=repr))
        )
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (
            (f"{name}.{field.name}", getattr(value, field.name, None)) for field in fields(value)
        )
    elif not isinstance(value, SEALED) and not callable(value):
        yield from (
            (f"{name}.{key}", inner) for key, inner in getattr(value, "__dict__", {}).items()
        )


def digest_of(digest: Any, batch: Any) -> None:
    """Add all data of a batch to a digest of ``hashlib``."""
    for _, leaf in leaves_in(batch):
        if isinstance(leaf, Tensor):
            for part in dense_parts(leaf):
                digest.update(bytes_in(part).cpu().numpy().tobytes())
        elif isinstance(leaf, np.ndarray | np.generic) and not leaf.dtype.hasobject:
            digest.update(leaf.tobytes())
        else:
            digest.update(repr(leaf).encode(errors="replace"))


def to_channels_last(batch: Any) -> Any:
    """Convert images [batch, channels, height, width] to channels_last; ``batch``: a tensor, or a
    tuple, list or dict of such.
    """
    if isinstance(batch, dict):
        return {name: to_channels_last(part) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [to_channels_last(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    is_image = (
        isinstance(batch, Tensor)
        and batch.layout == torch.strided
        and not batch.is_nested
        and batch.ndim == 4
    )
    return batch.contiguous(memory_format=torch.channels_last) if is_image else batch
