"""Finds the data in a batch, however nested, and looks into tensors, however stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from measurement.agent.ringside_agent.reading.batches import bytes_of

PLAIN = (str, bytes, bool, int, float, complex, np.ndarray, np.generic)
"""Data in a batch other than tensors."""
SEALED = (type, nn.Module, torch.Generator)
"""Objects that are not searched for data."""
MAX_DEPTH = 8
"""Levels of nested objects: a batch may refer to its data set."""


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor, sparse or not, holds neither NaN nor infinity. Waits for the device."""
    values = tensor.detach()
    if values.layout is not torch.strided:
        values = values.to_sparse().coalesce().values()
    return bool(values.isfinite().all())


def leaves_in(value: Any, inside: tuple[int, ...] = ()) -> Iterator[Any]:
    """Yield each tensor, array, text and number in a batch.

    ``inside``: ids of the objects that contain it, for objects that contain themselves.
    """
    if isinstance(value, (Tensor, *PLAIN)):
        yield value
    elif len(inside) < MAX_DEPTH and id(value) not in inside:
        for part in _parts(value):
            yield from leaves_in(part, (*inside, id(value)))


def _parts(value: Any) -> Iterable[Any]:
    """The parts of a container.

    Hugging Face's batches are mappings; PyTorch Geometric's have attributes.
    """
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Set):
        return sorted(value, key=repr)
    if isinstance(value, SEALED) or callable(value):
        return ()
    return getattr(value, "__dict__", {}).values()


def digest_of(digest: Any, batch: Any) -> None:
    """Add all data of a batch to a digest of ``hashlib``."""
    for leaf in leaves_in(batch):
        if isinstance(leaf, Tensor):
            sparse = leaf.detach().coalesce() if leaf.is_sparse else None
            for part in [leaf] if sparse is None else [sparse.indices(), sparse.values()]:
                digest.update(bytes_of(part))
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
    is_image = isinstance(batch, Tensor) and batch.layout == torch.strided and batch.dim() == 4
    return batch.contiguous(memory_format=torch.channels_last) if is_image else batch
