"""``torch.distributed`` over MPI on stock PyTorch: a process group over mpi4py. Importing this module registers it.

    import backends.mpi.process_group
    dist.init_process_group("mpi4py", init_method="mpi4py://")        # under mpirun, horovodrun --mpi or srun

MASTER_ADDR and RANK are not needed. A store, rank and world size may be given; rank and world size must be MPI's own. MPI and
mpi4py are loaded when a group is made, not on import.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler

from backends.mpi import operations
from backends.mpi.group import NAME, MpiGroup, Tensors, require_blocks, require_list
from backends.mpi.library import check_rank, load_mpi, rendezvous
from backends.mpi.operations import Stage
from backends.mpi.works import PointWork, Work

LOWEST_TAG_LIMIT = 32767
"""Every MPI allows tags up to this number."""


class MpiProcessGroup(MpiGroup):
    """All operations of ``torch.distributed`` over one communicator. This class adds those that only move data."""

    def broadcast(self, tensors: Tensors | torch.Tensor, opts: Any = None) -> Work:
        """Copy the root's tensors to all ranks."""
        opts = opts or dist.BroadcastOptions()
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors

        def run(stage: Stage) -> None:
            is_root = self.rank() == opts.rootRank
            for tensor in tensors:
                operations.broadcast(self._comm, stage.read(tensor) if is_root else stage.write(tensor), opts.rootRank)

        return self._submit("broadcast", run, opts, outputs=tensors)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Gather every rank's tensor in each output, in order of rank."""
        opts = opts or dist.distributed_c10d.AllgatherOptions()
        for blocks, block in zip(outputs, inputs, strict=True):
            require_blocks("all_gather", blocks=blocks, block=block, count=self.size())

        def run(stage: Stage) -> None:
            for blocks, block in zip(outputs, inputs, strict=True):
                operations.all_gather(self._comm, stage.write(blocks), stage.read(block))

        return self._submit("all_gather", run, opts, outputs=outputs)

    def all_gather_single(self, output: torch.Tensor, block: torch.Tensor, opts: Any = None) -> Work:
        """Gather every rank's tensor in one output, in order of rank."""
        return self.all_gather_single_coalesced([output], [block], opts)

    def allgather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """Gather every rank's tensor in a list, one list for each input. The ranks' tensors may differ in size."""
        opts = opts or dist.distributed_c10d.AllgatherOptions()
        for outputs, block in zip(output_lists, inputs, strict=True):
            require_list("all_gather", outputs, like=block, rank=self.rank(), count=self.size())

        def run(stage: Stage) -> None:
            for outputs, block in zip(output_lists, inputs, strict=True):
                self._all_gather_list(stage, outputs, block)

        return self._submit("all_gather", run, opts, outputs=[tensor for outputs in output_lists for tensor in outputs])

    def allgather_coalesced(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """Gather every rank's tensors, in one list for each rank."""
        return self.allgather(list(zip(*output_lists, strict=True)), inputs, opts)

    def _all_gather_list(self, stage: Stage, outputs: Tensors, block: torch.Tensor) -> None:
        if len({output.numel() for output in outputs}) == 1:
            operations.all_gather(self._comm, stage.write_all(outputs), stage.read(block))
            return
        for root, output in enumerate(outputs):
            place = stage.write(output)
            if root == self.rank():
                place.view(-1).copy_(stage.read(block).view(-1))
            operations.broadcast(self._comm, place, root)

    def gather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        """Gather every rank's tensor in a list on the root."""
        (block,), is_root = inputs, self.rank() == opts.rootRank
        outputs = output_lists[0] if is_root else ()
        if is_root:
            require_list("gather", outputs, like=block, rank=self.rank(), count=self.size())

        def run(stage: Stage) -> None:
            blocks = stage.write_all(outputs) if is_root else None
            operations.gather(self._comm, blocks, stage.read(block), opts.rootRank)

        return self._submit("gather", run, opts, outputs=outputs if is_root else inputs)

    def gather_single(self, output: torch.Tensor, block: torch.Tensor, opts: Any) -> Work:
        """Gather every rank's tensor in one output on the root, in order of rank."""
        is_root = self.rank() == opts.rootRank
        return self.gather([list(output.view(-1).chunk(self.size()))] if is_root else [], [block], opts)

    def scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any) -> Work:
        """Give every rank its tensor of the root's list."""
        (output,), is_root = outputs, self.rank() == opts.rootRank
        blocks = input_lists[0] if is_root else ()
        if is_root:
            require_list("scatter", blocks, like=output, rank=self.rank(), count=self.size())

        def run(stage: Stage) -> None:
            packed = stage.read_all(blocks) if is_root else None
            operations.scatter(self._comm, stage.write(output), packed, opts.rootRank)

        return self._submit("scatter", run, opts, outputs=outputs)

    def all_to_all_single(
        self, output: torch.Tensor, source: torch.Tensor, received: Sequence[int], sent: Sequence[int], opts: Any = None
    ) -> Work:
        """Send blocks of rows to every rank and receive one from each. Blocks are equal unless counts are given."""
        opts = opts or dist.AllToAllOptions()
        rows_in, rows_out = _rows(output, received, self.size()), _rows(source, sent, self.size())

        def run(stage: Stage) -> None:
            place, packed = stage.write(output), stage.read(source)
            operations.all_to_all(self._comm, place, rows_in, packed, rows_out)

        return self._submit("all_to_all", run, opts, outputs=[output])

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Send a tensor to every rank and receive one from each."""
        opts = opts or dist.AllToAllOptions()
        if len(outputs) != self.size() or len(inputs) != self.size():
            raise ValueError(
                f"all_to_all over {self.size()} ranks: lists of {len(inputs)} and {len(outputs)}; one tensor for each rank"
            )

        def run(stage: Stage) -> None:
            place, packed = stage.write_all(outputs), stage.read_all(inputs)
            counts_in, counts_out = [tensor.numel() for tensor in outputs], [tensor.numel() for tensor in inputs]
            operations.all_to_all(self._comm, place, counts_in, packed, counts_out)

        return self._submit("all_to_all", run, opts, outputs=outputs)

    def barrier(self, opts: Any = None) -> Work:
        """Wait until every rank has called it."""
        return self._submit("barrier", lambda _: None, opts or dist.BarrierOptions(), outputs=[])

    def send(self, tensors: Tensors, destination: int, tag: int) -> PointWork:
        """Send to one rank."""
        return self._start("send to", tensors, lambda buffer: self._comm.Isend(buffer, destination, tag), destination, reads=True)

    def recv(self, tensors: Tensors, source: int, tag: int) -> PointWork:
        """Receive from one rank."""
        return self._start("receive from", tensors, lambda buffer: self._comm.Irecv(buffer, source, tag), source, reads=False)

    def recv_anysource(self, tensors: Tensors, tag: int) -> PointWork:
        """Receive from any rank. ``source_rank`` of the Work says which."""
        return self.recv(tensors, load_mpi().ANY_SOURCE, tag)

    def _start(self, label: str, tensors: Tensors, start: Callable[[Any], Any], peer: int, *, reads: bool) -> PointWork:
        (tensor,) = tensors
        stage = Stage(tensor)
        place = stage.read(tensor) if reads else stage.write(tensor)
        request = start(operations.bytes_of(place))
        label = f"{label} rank {peer}" if peer >= 0 else f"{label} any rank"
        return PointWork(label, request, queue=self._queue, outputs=tensors, finish=stage.flush, keep=place)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    gather_into_tensor = gather_single
    alltoall_base = all_to_all_single


def _rows(tensor: torch.Tensor, counts: Sequence[int], size: int) -> list[int]:
    """Convert rows for each rank to elements for each rank."""
    num_rows = tensor.shape[0] if tensor.dim() else 0
    counts = list(counts) or [num_rows // size] * size
    if len(counts) != size or sum(counts) != num_rows:
        raise ValueError(
            f"all_to_all over {size} ranks: split sizes {counts} for {num_rows} rows; one for each rank, that add up to them"
        )
    return [count * (tensor.numel() // max(num_rows, 1)) for count in counts]


def _create(options: Any, _: Any) -> MpiProcessGroup:
    """Make a group. ``torch.distributed`` calls it on the group's members only. Collective over them."""
    world = load_mpi().COMM_WORLD
    is_default = not options.global_ranks_in_group
    if is_default:
        check_rank(options.group_rank, options.group_size)
    _await_members(options)
    members = world.group if is_default else world.group.Incl(options.global_ranks_in_group)
    comm = world.Create_group(members, tag=zlib.crc32(options.group_id.encode()) % LOWEST_TAG_LIMIT)
    return MpiProcessGroup(comm, name=options.group_id, timeout=options.timeout)


def _await_members(options: Any) -> None:
    """Wait over the store until all members are there: making a communicator cannot time out, and the store can."""
    options.store.set(f"ready/{options.group_rank}", "")
    options.store.wait([f"ready/{rank}" for rank in range(options.group_size)], options.timeout)


def _register() -> None:
    """Register the backend and its URL scheme with ``torch.distributed``, once: a reload would find the scheme taken."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
        register_rendezvous_handler(NAME, rendezvous)


_register()
