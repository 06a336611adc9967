"""What loaders yield: how many samples a batch has, and in the first steps a digest of it."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Mapping
from typing import Any, Iterator, Sequence

from ..recorder import used_batches

MAX_DEPTH = 6
"""How deep tuples, lists and dicts are searched for tensors."""


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
    elif (
        depth < MAX_DEPTH and not isinstance(value, (str, bytes, int, float)) and value is not None
    ):
        for part in _parts(value):
            yield from tensors_in(part, depth + 1)


def _parts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    attributes = getattr(value, "__dict__", {})
    if not isinstance(attributes, dict):  # those of a class
        return ()
    held = attributes.get("_store", attributes)  # PyTorch Geometric's batches keep theirs there
    return held.values() if hasattr(held, "values") else ()


def digest_of(batch: Any) -> str | None:
    """A digest of a batch's tensors: shapes, types and all elements; None where it has none."""
    digest, any_tensor = hashlib.blake2b(digest_size=8), False
    for tensor in tensors_in(batch):
        any_tensor = True
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest() if any_tensor else None


def bytes_of(tensor: Any) -> bytes:
    """The elements of a tensor, one after another; its shape where they cannot be read."""
    try:
        plain = tensor.detach().cpu().contiguous()
        if not plain.numel():
            return b""
        return ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size())
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, or a class of its own
        return b"?"


class Source:
    """What is known of a loader's iterator, without a reference to either, which would keep them
    alive.
    """

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        """The loader's, when the iterator began."""
        self.is_over = False
        """Whether it came to its end: leftover batches of one that was left earlier were not
        used."""


UNKNOWN = Source()
"""The source of a batch whose iterator was not seen to begin."""


def source_of(iterator: Any) -> Source:
    """What is known of a loader's iterator."""
    source: Source = getattr(iterator, "_ringside", UNKNOWN)
    return source


class BatchLog:
    """What loaders have yielded in the first steps."""

    def __init__(self) -> None:
        self.loader: dict[str, Any] = {}
        """Settings of the loader whose batches steps used; empty where there was none."""
        self.steps: list[list[tuple[Source, str | None]]] = [[]]
        """Batches by the step in which they were drawn, with their digests; the last step has not
        ended."""

    def keep(self, iterator: Any, batch: Any) -> None:
        """Record a batch."""
        source = source_of(iterator)
        self.steps[-1].append((source, None))  # it was drawn, whether it can be read or not
        self.steps[-1][-1] = (source, digest_of(batch))

    def used(self, passes: Sequence[int], *, reads_ahead: bool) -> list[str | None]:
        """The digest of the batches that each step used in so many backward passes; None where it
        drew none.
        """
        unused: list[tuple[Source, str | None]] = []
        digests = []
        for drawn, count in zip(self.steps, passes):
            unused += drawn
            if len(unused) > count:
                unused = [
                    entry for entry in unused if entry[0].is_over or entry[0] is unused[-1][0]
                ]
            used = used_batches(len(unused), count, reads_ahead)
            self.loader = next(
                (source.settings for source, _ in unused[used] if source.settings), self.loader
            )
            digests.append(combined([digest for _, digest in unused[used]]))
            del unused[: used.stop]
        return digests


def combined(digests: Sequence[str | None]) -> str | None:
    """One digest of several; None where there is none, or one is not known."""
    known = [digest for digest in digests if digest]
    if not known or len(known) < len(digests):
        return None
    if len(known) == 1:
        return known[0]
    return hashlib.blake2b("".join(known).encode(), digest_size=8).hexdigest()
