"""A process group over one MPI communicator: its properties, and the operations that reduce.

``backends.mpi.process_group`` adds the operations that only move data, and registers the backend. ``torch.distributed`` and
DDP's reducer call the methods, so their names are not ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from backends.mpi import operations
from backends.mpi.library import load_mpi
from backends.mpi.operations import Stage
from backends.mpi.reductions import HALVES, Reduction, find_reduction
from backends.mpi.works import Queue, Work

NAME = "mpi4py"
"""The backend's name for ``init_process_group``. "mpi" is PyTorch's own backend, which its wheels do not contain."""

Tensors = Sequence[torch.Tensor]


ProcessGroup: Any = dist.ProcessGroup
"""Untyped, because its signatures list every C++ overload. A group written in Python is called with lists and options."""


class MpiGroup(ProcessGroup):
    """One communicator, the queue of its operations, and all_reduce, reduce and reduce_scatter."""

    supports_coalescing = False

    def __init__(self, comm: Any, *, name: str, timeout: timedelta) -> None:
        super().__init__(comm.rank, comm.size)  # torch 2.9 takes a store from groups written in C++ only
        self._comm = comm
        self._name = name
        self._queue = Queue(comm, timeout_s=timeout.total_seconds())

    @property
    def group_name(self) -> str:
        """Return the name by which functional collectives find the group."""
        return self._name

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME

    def _get_backend(self, device: torch.device) -> MpiGroup:
        """Return the group itself, which is its own backend on every device."""
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of operations that are issued from now on."""
        self._queue.timeout_s = timeout.total_seconds()

    def shutdown(self) -> None:
        """Finish the issued operations and free the communicator. Collective over the group."""
        self._queue.close()
        if self._comm and self._queue.failure is None and not load_mpi().Is_finalized():
            self._comm.Free()

    abort = shutdown

    def allreduce(self, tensors: Tensors | torch.Tensor, opts: Any = None) -> Work:
        """Reduce in place on all ranks, one tensor after another."""
        opts = opts or dist.AllreduceOptions()
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        reduction = _reduction(opts, tensors)

        def run(stage: Stage) -> None:
            for tensor in tensors:
                operations.all_reduce(self._comm, stage.update(tensor), reduction)

        return self._submit("all_reduce", run, opts, outputs=tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        """Reduce in place on the root."""
        (tensor,) = tensors
        reduction = _reduction(opts, tensors)

        def run(stage: Stage) -> None:
            place = stage.update(tensor) if self.rank() == opts.rootRank else stage.read(tensor)
            operations.reduce(self._comm, place, reduction, opts.rootRank)

        return self._submit("reduce", run, opts, outputs=tensors)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Reduce each input, and give each rank its block of it."""
        opts = opts or dist.ReduceScatterOptions()
        reduction = _reduction(opts, inputs)
        for output, blocks in zip(outputs, inputs, strict=True):
            require_blocks("reduce_scatter", blocks=blocks, block=output, count=self.size())

        def run(stage: Stage) -> None:
            for output, blocks in zip(outputs, inputs, strict=True):
                operations.reduce_scatter(self._comm, stage.write(output), stage.read(blocks), reduction)

        return self._submit("reduce_scatter", run, opts, outputs=outputs)

    def reduce_scatter_single(self, output: torch.Tensor, blocks: torch.Tensor, opts: Any = None) -> Work:
        """Reduce the input, and give each rank its block of it."""
        return self.reduce_scatter_single_coalesced([output], [blocks], opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        """Reduce a list of tensors, and give each rank its tensor. The tensors may differ in size."""
        opts = opts or dist.ReduceScatterOptions()
        (output,), (blocks,) = outputs, inputs
        reduction = _reduction(opts, blocks)
        require_list("reduce_scatter", blocks, like=output, rank=self.rank(), count=self.size())

        def run(stage: Stage) -> None:
            if len({block.numel() for block in blocks}) == 1:
                operations.reduce_scatter(self._comm, stage.write(output), stage.read_all(blocks), reduction)
                return
            for root, block in enumerate(blocks):
                copy = stage.read(block).clone()
                operations.reduce(self._comm, copy, reduction, root)
                if root == self.rank():
                    stage.write(output).copy_(copy)

        return self._submit("reduce_scatter", run, opts, outputs=outputs)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _submit(self, label: str, run: Callable[[Stage], None], opts: Any, *, outputs: Tensors) -> Work:
        """Queue an operation. Its tensors must be on the device of the first output."""
        stage = Stage(outputs[0], on_host=outputs[0].dtype in HALVES) if outputs else None

        def perform() -> None:
            if stage is not None:
                run(stage)
                stage.flush()

        timeout_s = opts.timeout.total_seconds()
        work = Work(label, perform, queue=self._queue, outputs=outputs, timeout_s=timeout_s if timeout_s > 0 else None)
        return self._queue.submit(work, is_async=opts.asyncOp)


def require_blocks(label: str, *, blocks: torch.Tensor, block: torch.Tensor, count: int) -> None:
    """Refuse a flat tensor that does not hold one block for each rank.

    Raises:
        ValueError: with both sizes.
    """
    if blocks.numel() != block.numel() * count or blocks.dtype != block.dtype:
        raise ValueError(
            f"{label} over {count} ranks: a tensor of {block.numel()} {block.dtype} for one rank and one of {blocks.numel()} "
            f"{blocks.dtype} for all; the latter must have {count} times as many elements, of the same dtype"
        )


def require_list(label: str, tensors: Tensors, *, like: torch.Tensor, rank: int, count: int) -> None:
    """Refuse a list without one tensor for each rank, or whose tensor for this rank does not match ``like``.

    Raises:
        ValueError: with both sizes.
    """
    if len(tensors) != count:
        raise ValueError(f"{label} over {count} ranks: the list has {len(tensors)} tensors; one for each rank is needed")
    if tensors[rank].numel() != like.numel() or any(tensor.dtype != like.dtype for tensor in tensors):
        raise ValueError(
            f"{label}: the list has {tensors[rank].numel()} {tensors[rank].dtype} for rank {rank}, and its own tensor has "
            f"{like.numel()} {like.dtype}; sizes and dtypes must agree"
        )


def _reduction(opts: Any, tensors: Tensors) -> Reduction:
    if any(tensor.is_sparse for tensor in tensors):
        raise NotImplementedError("MPI cannot reduce sparse tensors; use to_dense(), or transport 'gloo'")
    if len(tensors) > 1 and len({tensor.dtype for tensor in tensors}) > 1:
        raise ValueError(f"one reduction of tensors of several dtypes ({', '.join(str(t.dtype) for t in tensors)}); issue one each")
    return find_reduction(opts.reduceOp, tensors[0].dtype)
