"""``torch.distributed`` over MPI on stock PyTorch: a process group over mpi4py.

Importing this module registers it.

    import backends.mpi.process_group

    dist.init_process_group("mpi4py", init_method="mpi4py://")

It is started under mpirun, horovodrun --mpi or srun.

MASTER_ADDR and RANK are not needed. A store, rank and world size may be given; rank and world size
must be MPI's own. MPI and mpi4py are loaded when a group is made, not on import.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler

from backends.mpi import operations
from backends.mpi.library import check_rank, load_mpi, rendezvous
from backends.mpi.operations import HALVES, Reduction, Stage, find_reduction
from backends.mpi.works import PointWork, Queue, Work

NAME = "mpi4py"
"""The backend's name for ``init_process_group``. "mpi" is PyTorch's own backend, which its wheels
do not contain."""

Tensors = Sequence[torch.Tensor]


ProcessGroup: Any = dist.ProcessGroup
"""Untyped, because its signatures list every C++ overload. A group written in Python is called with
lists and options."""

LOWEST_TAG_LIMIT = 32767
"""Every MPI allows tags up to this value."""


class MpiProcessGroup(ProcessGroup):
    """All operations of ``torch.distributed`` over one communicator, and their queue.

    ``torch.distributed`` and DDP's reducer call the methods, and define their names.
    """

    supports_coalescing = False

    def __init__(self, comm: Any, *, name: str, timeout: timedelta) -> None:
        # torch 2.9 takes a store from groups written in C++ only
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._name = name
        self._queue = Queue(comm, timeout_s=timeout.total_seconds())

    @property
    def group_name(self) -> str:
        """Return the name by which functional collectives find the group."""
        return self._name

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME

    def _get_backend(self, device: torch.device) -> MpiProcessGroup:
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

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        """Reduce each input, and give each rank its block of it."""
        opts = opts or dist.ReduceScatterOptions()
        reduction = _reduction(opts, inputs)
        for output, blocks in zip(outputs, inputs, strict=True):
            self._require_blocks("reduce_scatter", blocks=blocks, block=output)

        def run(stage: Stage) -> None:
            for output, blocks in zip(outputs, inputs, strict=True):
                operations.reduce_scatter(
                    self._comm, stage.write(output), stage.read(blocks), reduction
                )

        return self._submit("reduce_scatter", run, opts, outputs=outputs)

    def reduce_scatter_single(
        self, output: torch.Tensor, blocks: torch.Tensor, opts: Any = None
    ) -> Work:
        """Reduce the input, and give each rank its block of it."""
        return self.reduce_scatter_single_coalesced([output], [blocks], opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        """Reduce a list of tensors, and give each rank its tensor. The tensors may differ in
        size.
        """
        opts = opts or dist.ReduceScatterOptions()
        (output,), (blocks,) = outputs, inputs
        reduction = _reduction(opts, blocks)
        self._require_list("reduce_scatter", blocks, like=output)

        def run(stage: Stage) -> None:
            if len({block.numel() for block in blocks}) == 1:
                operations.reduce_scatter(
                    self._comm, stage.write(output), stage.read_all(blocks), reduction
                )
                return
            for root, block in enumerate(blocks):
                copy = stage.read(block).clone()
                operations.reduce(self._comm, copy, reduction, root)
                if root == self.rank():
                    stage.write(output).copy_(copy)

        return self._submit("reduce_scatter", run, opts, outputs=outputs)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _submit(
        self, label: str, run: Callable[[Stage], None], opts: Any, *, outputs: Tensors
    ) -> Work:
        """Queue an operation. Its tensors must be on the device of the first output."""
        stage = Stage(outputs[0], on_host=outputs[0].dtype in HALVES) if outputs else None

        def perform() -> None:
            if stage is not None:
                run(stage)
                stage.flush()

        opts = opts or dist.BarrierOptions()  # each kind has these two
        timeout_s = opts.timeout.total_seconds()
        if timeout_s <= 0:
            timeout_s = self._queue.timeout_s
        work = Work(label, perform, queue=self._queue, outputs=outputs, timeout_s=timeout_s)
        return self._queue.submit(work, is_async=opts.asyncOp)

    def broadcast(self, tensors: Tensors | torch.Tensor, opts: Any = None) -> Work:
        """Copy the root's tensors to all ranks."""
        opts = opts or dist.BroadcastOptions()
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors

        def run(stage: Stage) -> None:
            is_root = self.rank() == opts.rootRank
            for tensor in tensors:
                operations.broadcast(
                    self._comm,
                    stage.read(tensor) if is_root else stage.write(tensor),
                    opts.rootRank,
                )

        return self._submit("broadcast", run, opts, outputs=tensors)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        """Gather every rank's tensor in each output, in order of rank."""
        for blocks, block in zip(outputs, inputs, strict=True):
            self._require_blocks("all_gather", blocks=blocks, block=block)

        def run(stage: Stage) -> None:
            for blocks, block in zip(outputs, inputs, strict=True):
                operations.all_gather(self._comm, stage.write(blocks), stage.read(block))

        return self._submit("all_gather", run, opts, outputs=outputs)

    def all_gather_single(
        self, output: torch.Tensor, block: torch.Tensor, opts: Any = None
    ) -> Work:
        """Gather every rank's tensor in one output, in order of rank."""
        return self.all_gather_single_coalesced([output], [block], opts)

    def allgather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """Gather every rank's tensor in a list, one list for each input.

        The ranks' tensors may differ in size.
        """
        for outputs, block in zip(output_lists, inputs, strict=True):
            self._require_list("all_gather", outputs, like=block)

        def run(stage: Stage) -> None:
            for outputs, block in zip(output_lists, inputs, strict=True):
                if len({output.numel() for output in outputs}) == 1:
                    blocks = stage.write_all(outputs)
                    operations.all_gather(self._comm, blocks, stage.read(block))
                    continue
                for root, output in enumerate(outputs):
                    place = stage.write(output)
                    if root == self.rank():
                        place.view(-1).copy_(stage.read(block).view(-1))
                    operations.broadcast(self._comm, place, root)

        return self._submit(
            "all_gather",
            run,
            opts,
            outputs=[tensor for outputs in output_lists for tensor in outputs],
        )

    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Work:
        """Gather every rank's tensors, in one list for each rank."""
        return self.allgather(list(zip(*output_lists, strict=True)), inputs, opts)

    def gather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        """Gather every rank's tensor in a list on the root."""
        (block,), is_root = inputs, self.rank() == opts.rootRank
        outputs = output_lists[0] if is_root else ()
        if is_root:
            self._require_list("gather", outputs, like=block)

        def run(stage: Stage) -> None:
            blocks = stage.write_all(outputs) if is_root else None
            operations.gather(self._comm, blocks, stage.read(block), opts.rootRank)

        return self._submit("gather", run, opts, outputs=outputs if is_root else inputs)

    def gather_single(self, output: torch.Tensor, block: torch.Tensor, opts: Any) -> Work:
        """Gather every rank's tensor in one output on the root, in order of rank."""
        is_root = self.rank() == opts.rootRank
        return self.gather(
            [list(output.view(-1).chunk(self.size()))] if is_root else [], [block], opts
        )

    def scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any) -> Work:
        """Give every rank its tensor of the root's list."""
        (output,), is_root = outputs, self.rank() == opts.rootRank
        blocks = input_lists[0] if is_root else ()
        if is_root:
            self._require_list("scatter", blocks, like=output)

        def run(stage: Stage) -> None:
            packed = stage.read_all(blocks) if is_root else None
            operations.scatter(self._comm, stage.write(output), packed, opts.rootRank)

        return self._submit("scatter", run, opts, outputs=outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        received: Sequence[int],
        sent: Sequence[int],
        opts: Any = None,
    ) -> Work:
        """Send blocks of rows to every rank and receive one from each.

        Blocks are equal unless counts are given.
        """
        rows_in, rows_out = _rows(output, received, self.size()), _rows(source, sent, self.size())

        def run(stage: Stage) -> None:
            place, packed = stage.write(output), stage.read(source)
            operations.all_to_all(self._comm, place, rows_in, packed, rows_out)

        return self._submit("all_to_all", run, opts, outputs=[output])

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Send a tensor to every rank and receive one from each."""
        counts_in, counts_out = ([part.numel() for part in parts] for parts in (outputs, inputs))
        if not len(outputs) == len(inputs) == self.size():
            raise ValueError(
                f"all_to_all over {self.size()} ranks: lists of {len(inputs)} and {len(outputs)};"
                " one tensor for each rank"
            )

        def run(stage: Stage) -> None:
            place, packed = stage.write_all(outputs), stage.read_all(inputs)
            operations.all_to_all(self._comm, place, counts_in, packed, counts_out)

        return self._submit("all_to_all", run, opts, outputs=outputs)

    def barrier(self, opts: Any = None) -> Work:
        """Wait until every rank has called it."""
        return self._submit("barrier", lambda _: None, opts, outputs=[])

    def send(self, tensors: Tensors, destination: int, tag: int) -> PointWork:
        """Send to one rank."""
        return self._start(
            "send to",
            tensors,
            lambda buffer: self._comm.Isend(buffer, destination, tag),
            destination,
            reads=True,
        )

    def recv(self, tensors: Tensors, source: int, tag: int) -> PointWork:
        """Receive from one rank."""
        return self._start(
            "receive from",
            tensors,
            lambda buffer: self._comm.Irecv(buffer, source, tag),
            source,
            reads=False,
        )

    def recv_anysource(self, tensors: Tensors, tag: int) -> PointWork:
        """Receive from any rank. ``source_rank`` of the Work says which."""
        return self.recv(tensors, load_mpi().ANY_SOURCE, tag)

    def _start(
        self, label: str, tensors: Tensors, start: Callable[[Any], Any], peer: int, *, reads: bool
    ) -> PointWork:
        (tensor,) = tensors
        stage = Stage(tensor)
        place = stage.read(tensor) if reads else stage.write(tensor)
        request = start(operations.bytes_of(place))
        label = f"{label} rank {peer}" if peer >= 0 else f"{label} any rank"
        return PointWork(
            label, request, queue=self._queue, outputs=tensors, finish=stage.flush, keep=place
        )

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    gather_into_tensor = gather_single
    alltoall_base = all_to_all_single

    def _require_blocks(self, label: str, *, blocks: torch.Tensor, block: torch.Tensor) -> None:
        """Refuse a flat tensor that does not hold one block for each rank.

        Raises:
            ValueError: with both sizes.
        """
        count = self.size()
        if blocks.numel() != block.numel() * count or blocks.dtype != block.dtype:
            raise ValueError(
                f"{label} over {count} ranks: a tensor of {block.numel()} {block.dtype} for one"
                f" rank and one of {blocks.numel()} {blocks.dtype} for all; the latter must have"
                f" {count} times as many elements, of the same dtype"
            )

    def _require_list(self, label: str, tensors: Tensors, *, like: torch.Tensor) -> None:
        """Refuse a list without one tensor for each rank, or whose tensor for this rank does not
        match ``like``.

        Raises:
            ValueError: with both sizes.
        """
        rank, count = self.rank(), self.size()
        is_one_each = len(tensors) == count and tensors[rank].numel() == like.numel()
        if not is_one_each or any(tensor.dtype != like.dtype for tensor in tensors):
            sizes = ", ".join(f"{tensor.numel()} {tensor.dtype}" for tensor in tensors)
            raise ValueError(
                f"{label} over {count} ranks: a list of {sizes}; one tensor for each rank is"
                f" needed, for rank {rank} one of {like.numel()} {like.dtype}"
            )


def _reduction(opts: Any, tensors: Tensors) -> Reduction:
    if any(tensor.is_sparse for tensor in tensors):
        raise NotImplementedError(
            "MPI cannot reduce sparse tensors; use to_dense(), or transport 'gloo'"
        )
    if len(tensors) > 1 and len({tensor.dtype for tensor in tensors}) > 1:
        raise ValueError(
            "one reduction of tensors of several dtypes"
            f" ({', '.join(str(t.dtype) for t in tensors)}); issue one each"
        )
    return find_reduction(opts.reduceOp, tensors[0].dtype)


def _rows(tensor: torch.Tensor, counts: Sequence[int], size: int) -> list[int]:
    """Convert rows for each rank to elements for each rank."""
    num_rows = tensor.shape[0] if tensor.dim() else 0
    counts = list(counts) or [num_rows // size] * size
    if len(counts) != size or sum(counts) != num_rows:
        raise ValueError(
            f"all_to_all over {size} ranks: split sizes {counts} for {num_rows} rows; one for each"
            " rank, that add up to them"
        )
    return [count * (tensor.numel() // max(num_rows, 1)) for count in counts]


def _create(options: Any, _: Any) -> MpiProcessGroup:
    """Make a group.

    ``torch.distributed`` calls it on the group's members only. Collective over them.
    """
    world = load_mpi().COMM_WORLD
    is_default = not options.global_ranks_in_group
    if is_default:
        check_rank(options.group_rank, options.group_size)
    # wait over the store until all are there: making a communicator cannot time out
    options.store.set(f"ready/{options.group_rank}", "")
    options.store.wait([f"ready/{rank}" for rank in range(options.group_size)], options.timeout)
    members = world.group if is_default else world.group.Incl(options.global_ranks_in_group)
    comm = world.Create_group(members, tag=zlib.crc32(options.group_id.encode()) % LOWEST_TAG_LIMIT)
    return MpiProcessGroup(comm, name=options.group_id, timeout=options.timeout)


if NAME.upper() not in dist.Backend._plugins:  # a reload would find the URL scheme taken
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    register_rendezvous_handler(NAME, rendezvous)
