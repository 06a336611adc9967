"""What loaders yield: how many samples a batch has, and in the first steps a digest of it."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Mapping
from typing import Any, Callable, Iterator

DEEPEST = 6
"""Levels of tuples, lists and dicts in which tensors are looked for."""


def size_of(batch: Any) -> int:
    """Samples of a batch: the first dimension of its first tensor; 0 where there is none."""
    if type(batch) in (list, tuple) and batch:
        shape = getattr(batch[0], "shape", None)  # the usual case, quickly
        if shape:
            return int(shape[0])
    first = next(tensors_in(batch), None)
    return int(first.shape[0]) if first is not None and first.dim() else 0


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """All tensors of a batch, in the order in which it has them."""
    torch: Any = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < DEEPEST and not isinstance(value, (str, bytes, int, float)) and value is not None:
        for part in _parts(value):
            yield from tensors_in(part, depth + 1)


def _parts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    held = getattr(value, "__dict__", {})
    return held.get("_store", held).values() if isinstance(held, dict) and hasattr(held.get("_store", held), "values") else ()


def digest_of(batch: Any) -> str | None:
    """A digest of a batch's tensors: shapes, types and all elements; None where it has none."""
    found, any_tensor = hashlib.blake2b(digest_size=8), False
    for tensor in tensors_in(batch):
        any_tensor = True
        found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(bytes_of(tensor))
    return found.hexdigest() if any_tensor else None


def bytes_of(tensor: Any) -> bytes:
    """The elements of a tensor, one after another; its shape where they cannot be read."""
    try:
        plain = tensor.detach().cpu().contiguous()
        return ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()) if plain.numel() else b""
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, or a class of its own
        return b"?"


class Yielded:
    """What loaders have yielded since the last step; of the first steps only."""

    def __init__(self) -> None:
        self.loader: Callable[[], Any] = lambda: None
        """Returns the loader whose batches a backward pass followed; None where there was none, or it has gone."""
        self._batches: list[tuple[int, str | None, Any]] = []

    def keep(self, iterator: Any, batch: Any, backwards: int) -> None:
        """Note a batch, and how many backward passes came before it."""
        self._batches.append((backwards, digest_of(batch), getattr(iterator, "_ringside_loader", None)))

    def take(self, backwards: int) -> str | None:
        """The digest of the batches that backward passes followed, and forget all; None where there is none.

        Of several that were drawn before as many passes all count, else the last one.
        """
        begins = sorted({before for before, _, _ in self._batches})
        used = []
        for begin, end in zip(begins, [*begins[1:], backwards]):
            drawn = [one for one in self._batches if one[0] == begin]
            used += drawn if len(drawn) == end - begin else drawn[-1:] if end > begin else []
        self._batches = []
        if used and used[-1][2] is not None:
            self.loader = used[-1][2]
        found = [digest for _, digest, _ in used if digest]
        if not found:
            return None
        return found[0] if len(found) == 1 else hashlib.blake2b("".join(found).encode(), digest_size=8).hexdigest()
