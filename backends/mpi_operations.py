"""Collectives on contiguous host tensors, each one blocking MPI call. Counts may exceed 32 bits.

Operations that do not reduce move bytes, whatever the dtype. mpi4py releases the GIL during every call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from backends.mpi_library import load_mpi
from backends.mpi_reductions import Reduction

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
        comm.Reduce(load_mpi().IN_PLACE if is_root else part, part if is_root else None, reduction.operation, root)
    if is_root:
        _finish_mean(comm, tensor, reduction)


def reduce_scatter(comm: Any, output: torch.Tensor, blocks: torch.Tensor, reduction: Reduction) -> None:
    """Reduce ``blocks``, which holds a block of the output's size for every rank, and give each rank its block."""
    begin = blocks.data_ptr()
    if begin <= output.data_ptr() < begin + blocks.nbytes:
        blocks = blocks.clone()  # the output may be one of the blocks; MPI forbids aliases
    if blocks.nbytes > LIMIT_BYTES:
        for root, block in enumerate(blocks.view(-1).chunk(comm.size)):
            mine = output if root == comm.rank else block
            if mine is output:
                output.view(-1).copy_(block)
            reduce(comm, mine, reduction, root)
        return
    source = [_memory(blocks), output.numel(), reduction.datatype]  # mpi4py takes the count of one block
    comm.Reduce_scatter_block(source, [_memory(output), output.numel(), reduction.datatype], reduction.operation)
    _finish_mean(comm, output, reduction)


def broadcast(comm: Any, tensor: torch.Tensor, root: int) -> None:
    """Copy the root's data to all ranks."""
    comm.Bcast(bytes_of(tensor), root)


def all_gather(comm: Any, blocks: torch.Tensor, block: torch.Tensor) -> None:
    """Gather every rank's block on all ranks, in order of rank."""
    is_in_place = block.data_ptr() == blocks.data_ptr() + comm.rank * block.nbytes  # as FSDP gathers; MPI forbids aliases
    comm.Allgather(load_mpi().IN_PLACE if is_in_place else bytes_of(block), _blocks_like(block, blocks))


def gather(comm: Any, blocks: torch.Tensor | None, block: torch.Tensor, root: int) -> None:
    """Gather every rank's block on the root. ``blocks`` is None on other ranks."""
    comm.Gather(bytes_of(block), None if blocks is None else _blocks_like(block, blocks), root)


def scatter(comm: Any, block: torch.Tensor, blocks: torch.Tensor | None, root: int) -> None:
    """Give every rank its block from the root. ``blocks`` is None on other ranks."""
    comm.Scatter(None if blocks is None else _blocks_like(block, blocks), bytes_of(block), root)


def all_to_all(comm: Any, output: torch.Tensor, received: Sequence[int], source: torch.Tensor, sent: Sequence[int]) -> None:
    """Send blocks of any length from every rank to every rank.

    Args:
        comm: the communicator.
        output: where the blocks go, one after another.
        received: elements from each rank.
        source: the blocks to send, one after another.
        sent: elements to each rank.
    """
    sizes_in, sizes_out = ([count * source.element_size() for count in counts] for counts in (received, sent))
    step = LIMIT_BYTES // comm.size
    longest = _agree_on_longest(comm, max(*sizes_in, *sizes_out))
    if longest <= step:
        comm.Alltoallv([_memory(source), sizes_out, load_mpi().BYTE], [_memory(output), sizes_in, load_mpi().BYTE])
        return
    pieces_in, pieces_out = _bytes_of_blocks(output, sizes_in), _bytes_of_blocks(source, sizes_out)
    for begin in range(0, longest, step):
        _exchange(comm, [piece[begin : begin + step] for piece in pieces_in], [piece[begin : begin + step] for piece in pieces_out])


def bytes_of(tensor: torch.Tensor) -> list[Any]:
    """Make a buffer for an MPI call that moves data: bytes, or one element of a datatype as large as the tensor."""
    mpi = load_mpi()
    if tensor.nbytes <= LIMIT_BYTES:
        return [_memory(tensor), tensor.nbytes, mpi.BYTE]
    return [_memory(tensor), 1, _long_datatype(tensor.nbytes)]


def _memory(tensor: torch.Tensor) -> Any:
    return load_mpi().buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)


def _blocks_like(block: torch.Tensor, blocks: torch.Tensor) -> list[Any]:
    """Make a buffer for all ranks' blocks. mpi4py takes the count and datatype of one block."""
    _, count, datatype = bytes_of(block)
    return [_memory(blocks), count, datatype]


def _parts(tensor: torch.Tensor, reduction: Reduction) -> Iterator[list[Any]]:
    """Yield buffers that together cover the tensor, each short enough for a 32-bit count."""
    address, size, limit = tensor.data_ptr(), tensor.element_size(), LIMIT_BYTES // tensor.element_size()
    for start in range(0, tensor.numel() or 1, limit):
        count = min(limit, tensor.numel() - start)
        yield [load_mpi().buffer.fromaddress(address + start * size, count * size), count, reduction.datatype]


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


def _agree_on_longest(comm: Any, num_bytes: int) -> int:
    """Return the largest block of any rank: all ranks must make the same number of exchanges."""
    longest = torch.tensor([num_bytes])
    comm.Allreduce(load_mpi().IN_PLACE, [_memory(longest), 1, load_mpi().INT64_T], load_mpi().MAX)
    return int(longest)


def _bytes_of_blocks(tensor: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    return list(tensor.detach().view(-1).view(torch.uint8).split(list(sizes)))


def _exchange(comm: Any, incoming: Sequence[torch.Tensor], outgoing: Sequence[torch.Tensor]) -> None:
    """Exchange one piece of each block. They are packed, so that displacements stay small."""
    packed, arrived = torch.cat(list(outgoing)), incoming[0].new_empty(sum(map(len, incoming)))
    byte = load_mpi().BYTE
    comm.Alltoallv([_memory(packed), list(map(len, outgoing)), byte], [_memory(arrived), list(map(len, incoming)), byte])
    for place, piece in zip(incoming, arrived.split(list(map(len, incoming))), strict=True):
        place.copy_(piece)
