"""Collectives on contiguous host tensors, each one blocking MPI call, with MPI's operation for each
ReduceOp that has a counterpart, and AVG. Counts may exceed 32 bits.

Operations that do not reduce move bytes, whatever the dtype. mpi4py releases the GIL during every
call.

Tensors for MPI must be contiguous and, unless the library is CUDA-aware, in host memory.

A contiguous tensor in host memory is used directly. Others are copied, and results are copied back.
GPU tensors are copied through pinned memory on a separate stream, which first waits for the work
that the caller's stream had when the operation was issued.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from backends.mpi.library import is_cuda_aware, load_mpi

LIMIT_BYTES = 1 << 30
"""Larger messages are split: before MPI 4, counts and displacements have 32 bits."""


def all_reduce(comm: Any, tensor: torch.Tensor, reduction: Reduction) -> None:
    """Reduce in place on every rank."""
    for part in _parts(tensor, reduction):
        comm.Allreduce(load_mpi().IN_PLACE, part, reduction.operation)
    _finish_mean(comm, tensor, reduction)


def reduce(comm: Any, tensor: torch.Tensor, reduction: Reduction, root: int) -> None:
    """Reduce in place on the root. The other ranks' tensors do not change."""
    is_root = comm.rank == root
    for part in _parts(tensor, reduction):
        comm.Reduce(
            load_mpi().IN_PLACE if is_root else part,
            part if is_root else None,
            reduction.operation,
            root,
        )
    if is_root:
        _finish_mean(comm, tensor, reduction)


def reduce_scatter(
    comm: Any, output: torch.Tensor, blocks: torch.Tensor, reduction: Reduction
) -> None:
    """Reduce ``blocks``, which holds a block of the output's size for every rank, and give each
    rank its block.
    """
    begin = blocks.data_ptr()
    if begin <= output.data_ptr() < begin + blocks.nbytes:
        blocks = blocks.clone()  # the output may be one of the blocks; MPI forbids aliases
    if blocks.nbytes > LIMIT_BYTES:
        for root, block in enumerate(blocks.view(-1).chunk(comm.size)):
            target = output if root == comm.rank else block
            if target is output:
                output.view(-1).copy_(block)
            reduce(comm, target, reduction, root)
        return
    # mpi4py takes the count of one block
    sent, received = (
        [_memory(part), output.numel(), reduction.datatype] for part in (blocks, output)
    )
    comm.Reduce_scatter_block(sent, received, reduction.operation)
    _finish_mean(comm, output, reduction)


def broadcast(comm: Any, tensor: torch.Tensor, root: int) -> None:
    """Copy the root's data to all ranks."""
    comm.Bcast(bytes_of(tensor), root)


def all_gather(comm: Any, blocks: torch.Tensor, block: torch.Tensor) -> None:
    """Gather every rank's block on all ranks, in order of rank."""
    # as FSDP gathers; MPI forbids aliases
    is_in_place = block.data_ptr() == blocks.data_ptr() + comm.rank * block.nbytes
    comm.Allgather(
        load_mpi().IN_PLACE if is_in_place else bytes_of(block), _blocks_like(block, blocks)
    )


def gather(comm: Any, blocks: torch.Tensor | None, block: torch.Tensor, root: int) -> None:
    """Gather every rank's block on the root. ``blocks`` is None on other ranks."""
    comm.Gather(bytes_of(block), _blocks_like(block, blocks), root)


def scatter(comm: Any, block: torch.Tensor, blocks: torch.Tensor | None, root: int) -> None:
    """Give every rank its block from the root. ``blocks`` is None on other ranks."""
    comm.Scatter(_blocks_like(block, blocks), bytes_of(block), root)


def all_to_all(
    comm: Any,
    output: torch.Tensor,
    received: Sequence[int],
    source: torch.Tensor,
    sent: Sequence[int],
) -> None:
    """Send blocks of any length from every rank to every rank; ``source`` and ``output`` have them
    one after another.

    ``received`` and ``sent``: elements from and to each rank.
    """
    sizes_in, sizes_out = (
        [count * source.element_size() for count in counts] for counts in (received, sent)
    )
    step = LIMIT_BYTES // comm.size
    block = torch.tensor([max(*sizes_in, *sizes_out)])
    # of any rank: all must make the same number of exchanges
    comm.Allreduce(load_mpi().IN_PLACE, [_memory(block), 1, load_mpi().INT64_T], load_mpi().MAX)
    longest = int(block)
    if longest <= step:
        comm.Alltoallv(
            [_memory(source), sizes_out, load_mpi().BYTE],
            [_memory(output), sizes_in, load_mpi().BYTE],
        )
        return
    pieces_in, pieces_out = _bytes_of_blocks(output, sizes_in), _bytes_of_blocks(source, sizes_out)
    for begin in range(0, longest, step):
        _exchange(
            comm,
            [piece[begin : begin + step] for piece in pieces_in],
            [piece[begin : begin + step] for piece in pieces_out],
        )


def bytes_of(tensor: torch.Tensor) -> list[Any]:
    """Make a buffer for an MPI call that moves data: bytes, or one element of a datatype as large
    as the tensor.
    """
    mpi = load_mpi()
    if tensor.nbytes <= LIMIT_BYTES:
        return [_memory(tensor), tensor.nbytes, mpi.BYTE]
    return [_memory(tensor), 1, _long_datatype(tensor.nbytes)]


def _memory(tensor: torch.Tensor) -> Any:
    return load_mpi().buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)


def _blocks_like(block: torch.Tensor, blocks: torch.Tensor | None) -> list[Any] | None:
    """Make a buffer for all ranks' blocks, where there are any. mpi4py takes the count and datatype
    of one block.
    """
    if blocks is None:
        return None
    _, count, datatype = bytes_of(block)
    return [_memory(blocks), count, datatype]


def _parts(tensor: torch.Tensor, reduction: Reduction) -> Iterator[list[Any]]:
    """Yield buffers that together cover the tensor, each short enough for a 32-bit count."""
    address, size = tensor.data_ptr(), tensor.element_size()
    limit = LIMIT_BYTES // size
    for start in range(0, tensor.numel() or 1, limit):
        count = min(limit, tensor.numel() - start)
        yield [
            load_mpi().buffer.fromaddress(address + start * size, count * size),
            count,
            reduction.datatype,
        ]


def _finish_mean(comm: Any, tensor: torch.Tensor, reduction: Reduction) -> None:
    if reduction.is_mean:
        tensor.detach().div_(comm.size)


@functools.lru_cache(maxsize=64)
def _long_datatype(num_bytes: int) -> Any:
    """Make a datatype of ``num_bytes``: pieces of ``LIMIT_BYTES`` and the rest."""
    byte = load_mpi().BYTE
    pieces, rest = divmod(num_bytes, LIMIT_BYTES)
    piece = byte.Create_contiguous(LIMIT_BYTES)
    return byte.Create_struct([pieces, rest], [0, pieces * LIMIT_BYTES], [piece, byte]).Commit()


def _bytes_of_blocks(tensor: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    return list(tensor.detach().view(-1).view(torch.uint8).split(list(sizes)))


def _exchange(
    comm: Any, incoming: Sequence[torch.Tensor], outgoing: Sequence[torch.Tensor]
) -> None:
    """Exchange one piece of each block. They are packed, so that displacements stay small."""
    packed, arrived = torch.cat(list(outgoing)), incoming[0].new_empty(sum(map(len, incoming)))
    byte = load_mpi().BYTE
    comm.Alltoallv(
        [_memory(packed), list(map(len, outgoing)), byte],
        [_memory(arrived), list(map(len, incoming)), byte],
    )
    for place, piece in zip(incoming, arrived.split(list(map(len, incoming))), strict=True):
        place.copy_(piece)


DATATYPES = {
    torch.bool: "C_BOOL",
    torch.int8: "INT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
    torch.uint8: "UINT8_T",
    torch.uint16: "UINT16_T",
    torch.uint32: "UINT32_T",
    torch.uint64: "UINT64_T",
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.complex64: "C_FLOAT_COMPLEX",
    torch.complex128: "C_DOUBLE_COMPLEX",
    torch.float16: "INT16_T",
    torch.bfloat16: "INT16_T",
}
"""Names in mpi4py. float16 and bfloat16 are sent as 16-bit integers and reduced by
``_half_operation``."""

HALVES = (torch.float16, torch.bfloat16)

SUMS = {"SUM": "SUM", "AVG": "SUM", "PRODUCT": "PROD"}
ORDER = {"MIN": "MIN", "MAX": "MAX"}
WHOLE = {"SUM": "SUM", "PRODUCT": "PROD", **ORDER, "BAND": "BAND", "BOR": "BOR", "BXOR": "BXOR"}
BOOL = {
    "SUM": "LOR",
    "PRODUCT": "LAND",
    "MIN": "LAND",
    "MAX": "LOR",
    "BAND": "LAND",
    "BOR": "LOR",
    "BXOR": "LXOR",
}
"""mpi4py's operations by ReduceOp. Bool tensors are one-bit numbers whose sum saturates, as in
NCCL."""

HALF_OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "SUM": torch.add,
    "PROD": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """One ReduceOp on one dtype, in MPI's terms."""

    datatype: Any
    operation: Any
    is_mean: bool
    """Whether the sum is to be divided by the number of ranks."""


def find_reduction(reduce_op: Any, dtype: torch.dtype) -> Reduction:
    """Find MPI's counterpart of a ReduceOp on tensors of ``dtype``.

    Raises:
        NotImplementedError: there is none.
    """
    # RedOpType hashes as a number and costs nothing; a ReduceOp object has to be asked for its
    # kind.
    kind = (
        reduce_op if isinstance(reduce_op, dist.ReduceOp.RedOpType) else reduce_op.__getstate__()[0]
    )
    return _find_by_kind(kind, dtype)


@functools.cache
def _find_by_kind(kind: Any, dtype: torch.dtype) -> Reduction:
    name = dist.ReduceOp.RedOpType(kind).name
    if dtype not in DATATYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DATATYPES)
        raise NotImplementedError(
            f"MPI has no datatype to reduce {dtype} tensors (it reduces {names}); convert the"
            " tensor first"
        )
    if dtype.is_complex or dtype.is_floating_point:
        operations = SUMS if dtype.is_complex else SUMS | ORDER
    else:
        operations = BOOL if dtype == torch.bool else WHOLE
    if name not in operations:
        raise NotImplementedError(
            f"MPI has no ReduceOp.{name} of {dtype} tensors; it has {', '.join(operations)}"
        )
    operation = operations[name]
    mpi = load_mpi()
    return Reduction(
        datatype=getattr(mpi, DATATYPES[dtype]),
        operation=_half_operation(operation, dtype) if dtype in HALVES else getattr(mpi, operation),
        is_mean=name == "AVG",
    )


@functools.cache
def _half_operation(operation: str, dtype: torch.dtype) -> Any:
    """Make a user-defined MPI operation that torch computes.

    Cached, because MPI allows only a few of them.
    """
    combine = HALF_OPERATIONS[operation]

    def reduce_into(incoming: Any, accumulated: Any, _datatype: Any) -> None:
        if not len(incoming):
            return  # Open MPI's reduce_scatter has empty segments
        left, right = (
            torch.frombuffer(incoming, dtype=dtype),
            torch.frombuffer(accumulated, dtype=dtype),
        )
        combine(left, right, out=right)

    return load_mpi().Op.Create(reduce_into, commute=True)


class Stage:
    """The copies of one operation. Made when the operation is issued, used when it runs."""

    def __init__(self, tensor: torch.Tensor, *, on_host: bool = False) -> None:
        self._is_host_needed = tensor.is_cuda and (on_host or not is_cuda_aware())
        self._ready = (
            torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None
        )
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
        flat = self._flat_for(tensors)
        with self._stream():
            for place, tensor in zip(split_like(flat, tensors), tensors, strict=True):
                place.copy_(tensor, non_blocking=True)
        return flat

    def write_all(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a flat buffer for the new data of tensors of one dtype."""
        flat = self._flat_for(tensors)
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
        """Return whether MPI can take the tensor itself; if so, wait for the caller's stream
        first.
        """
        if self._is_host_needed or not tensor.is_contiguous():
            return False
        if self._ready is not None:
            self._ready.synchronize()
        return True

    def _returned(self, copy: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        if copy is not tensor:
            self._copies.append((copy, tensor))
        return copy

    def _flat_for(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        size = torch.Size([sum(tensor.numel() for tensor in tensors)])
        return self._place_for(tensors[0], size=size)

    def _place_for(self, tensor: torch.Tensor, *, size: torch.Size) -> torch.Tensor:
        if self._is_host_needed:
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
