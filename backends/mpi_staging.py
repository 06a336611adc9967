"""Copies tensors to where MPI can take them: contiguous and, unless the library is CUDA-aware, in host memory.

A contiguous tensor in host memory is used directly. Others are copied, and results are copied back. GPU tensors are copied
through pinned memory on a separate stream, which first waits for the work that the caller's stream had when the operation was
issued.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

import torch

from backends.mpi_library import is_cuda_aware


class Stage:
    """The copies of one operation. Made when the operation is issued, used when it runs."""

    def __init__(self, tensor: torch.Tensor, *, on_host: bool = False) -> None:
        self._is_host_needed = on_host or (tensor.is_cuda and not is_cuda_aware())
        self._ready = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None
        self._device = tensor.device
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor's data, contiguous."""
        if self._is_usable(tensor):
            return tensor
        with self._stream():
            return self._place_for(tensor, size=tensor.shape).copy_(tensor, non_blocking=True)

    def update(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor's data, contiguous, to be overwritten with its new data."""
        return self._returned(self.read(tensor), tensor)

    def write(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return contiguous memory for the tensor's new data."""
        if self._is_usable(tensor):
            return tensor
        return self._returned(self._place_for(tensor, size=tensor.shape), tensor)

    def read_all(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a flat buffer with the data of tensors of one dtype, one after another."""
        flat = self._place_for(tensors[0], size=torch.Size([sum(tensor.numel() for tensor in tensors)]))
        with self._stream():
            for place, tensor in zip(split_like(flat, tensors), tensors, strict=True):
                place.copy_(tensor, non_blocking=True)
        return flat

    def write_all(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a flat buffer for the new data of tensors of one dtype."""
        flat = self._place_for(tensors[0], size=torch.Size([sum(tensor.numel() for tensor in tensors)]))
        self._copies += zip(split_like(flat, tensors), tensors, strict=True)
        return flat

    def flush(self) -> None:
        """Copy back what the operation wrote. On return every stream may read it."""
        if self._copies:
            with self._stream():
                for copy, tensor in self._copies:
                    tensor.detach().copy_(copy, non_blocking=True)
            self._copies.clear()
        elif self._ready is not None:
            torch.cuda.current_stream(self._device).synchronize()

    def _is_usable(self, tensor: torch.Tensor) -> bool:
        """Return whether MPI can take the tensor itself; if so, wait for the caller's stream first."""
        if not tensor.is_contiguous() or (self._ready is not None and self._is_host_needed):
            return False
        if self._ready is not None:
            self._ready.synchronize()
        return True

    def _returned(self, copy: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        if copy is not tensor:
            self._copies.append((copy, tensor))
        return copy

    def _place_for(self, tensor: torch.Tensor, *, size: torch.Size) -> torch.Tensor:
        if self._ready is not None and self._is_host_needed:
            return pinned(size, tensor.dtype)
        return torch.empty(size, dtype=tensor.dtype, device=tensor.device)

    @contextlib.contextmanager
    def _stream(self) -> Iterator[None]:
        """Select the stream for copies. On leaving, the copies are done."""
        with torch.no_grad():
            if self._ready is None:
                yield
                return
            stream = _copy_stream(self._device)
            with torch.cuda.stream(stream):
                stream.wait_event(self._ready)
                yield
            stream.synchronize()


def pinned(size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Allocate pinned host memory, which a GPU copies from and to at full speed."""
    return torch.empty(size, dtype=dtype, pin_memory=True)


def split_like(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of a flat buffer in the shapes of the tensors, in order."""
    pieces = flat.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
