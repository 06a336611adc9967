"""What every backend over a process group of ``torch.distributed`` shares, over NCCL, Gloo or MPI,
its single operations, and the plainest such backend.

There are two kinds of MPI: PyTorch's own, where it was built from source against an MPI, and this
repository's process group over mpi4py (``backends.mpi.process_group``), which stock wheels can use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from backends.base import (
    NCCL_HEARTBEAT,
    WHILE_STOPPED_S,
    Backend,
    BuildOptimizer,
    Prepared,
    Store,
    bytes_of,
    state_tensors,
    tensor_of,
    trained_parameters,
)
from measurement.agent.ringside_agent.place import MPI, RENDEZVOUS, World
from measurement.communicator import Communicator, ReduceOp
from measurement.errors import PlanError
from measurement.host import nccl_of
from measurement.plans.settings import PlanOptions
from measurement.records.record import Span


class ProcessGroupOptions(PlanOptions):
    """What a plan may set of the process group itself."""

    mpi_library: Literal["auto", "torch", "mpi4py"] = "auto"
    """Which MPI carries ``transport: mpi``. ``auto``: PyTorch's own where it was built with one,
    else mpi4py's."""


class TorchDistributed(Backend):
    """A backend over the default process group of ``torch.distributed``."""

    interface_version = 1
    Options = ProcessGroupOptions
    options: ProcessGroupOptions
    steered_by = frozenset({"torch.distributed"})
    transports = ("gloo", "nccl", "mpi")
    customary_launchers = ("torchrun", "mpirun", "spawn", "mpiexec-mpich", "horovodrun", "srun")

    def needs(self) -> frozenset[str]:
        """MPI must be started by a launcher of MPI; the others need a rendezvous."""
        return frozenset({MPI} if self.transport == "mpi" else {RENDEZVOUS})

    def environment(self) -> dict[str, str]:
        """A long NCCL timeout, so that a stopped rank is not ended."""
        return {NCCL_HEARTBEAT: str(WHILE_STOPPED_S)} if self.transport == "nccl" else {}

    def imports(self) -> Mapping[str, str]:
        return {"mpi4py": "mpi4py"} if self.transport == "mpi" else {}

    def setup(self, world: World, *, device: torch.device, store: Store | None = None) -> World:
        """Make the default process group. Collective."""
        self._device = device
        transport = self.transport or ("nccl" if device.type == "cuda" else "gloo")
        name = self._mpi() if transport == "mpi" else transport
        rendezvous: dict[str, Any]
        if name == "mpi":
            rendezvous = {}  # PyTorch's own gets rank and size from MPI
        elif store is not None:
            rendezvous = {"store": store, "rank": world.rank, "world_size": world.world_size}
        else:
            rendezvous = {"init_method": "mpi4py://" if name == "mpi4py" else "env://"}
        if name == "nccl":
            rendezvous["device_id"] = device
        dist.init_process_group(name, timeout=self.timeout, **rendezvous)
        return replace(world, rank=dist.get_rank(), world_size=dist.get_world_size())

    def _mpi(self) -> str:
        """The name of the process group over MPI: ``mpi`` is PyTorch's own."""
        library = self.options.mpi_library
        if library == "torch" and not dist.is_mpi_available():
            raise PlanError(
                "mpi_library 'torch': this PyTorch was built without MPI, as stock wheels are; use"
                " 'mpi4py' or 'auto'"
            )
        if library == "torch" or (library == "auto" and dist.is_mpi_available()):
            return "mpi"
        import backends.mpi.process_group  # noqa: F401 - the import registers it, and only this transport needs mpi4py

        return "mpi4py"

    def traced(self, prepared: Prepared) -> AbstractContextManager[list[Span]]:
        """The spans of the process group over mpi4py; the profiler sees all others."""
        if dist.get_backend() != "mpi4py":
            return super().traced(prepared)
        from backends.mpi.works import traced

        return traced()

    def synchronize_batch_norm(self, model: nn.Module) -> nn.Module:
        """``torch.nn.SyncBatchNorm``."""
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted

    def all_gather_bytes(self, data: bytes) -> Sequence[bytes]:
        """Gathers lengths first, then all bytes padded to the longest. Collective."""
        lengths = _all_gather(torch.tensor([len(data)], device=self._device))
        padded = torch.zeros(int(max(lengths)), dtype=torch.uint8, device=self._device)
        padded[: len(data)] = tensor_of(data)
        return [
            bytes_of(part[: int(length)])
            for part, length in zip(_all_gather(padded), lengths, strict=True)
        ]

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Sends their number first. Collective."""
        length = torch.tensor([len(data)], device=self._device)
        dist.broadcast(length, src=0)
        data_of_root = torch.empty(int(length), dtype=torch.uint8, device=self._device)
        if dist.get_rank() == 0:
            data_of_root.copy_(tensor_of(data))
        dist.broadcast(data_of_root, src=0)
        return bytes_of(data_of_root)

    def barrier(self) -> None:
        """Collective."""
        dist.barrier()

    def communicator(self) -> Communicator:
        """``torch.distributed``'s own functions. Collective."""
        return TorchCommunicator(
            groups={tuple(ranks): dist.new_group(list(ranks)) for ranks in self.groups}
        )

    def describe(self) -> dict[str, Any]:
        """Facts of the process group."""
        group = dist.get_backend()
        facts: dict[str, Any] = {
            "library": "torch.distributed",
            "version": torch.__version__,
            **self.options.model_dump(exclude={"mpi_library"}),
        }
        facts["transport"] = "mpi" if group == "mpi4py" else group
        if group == "nccl":
            version = ".".join(map(str, torch.cuda.nccl.version()))
            facts["nccl"] = (
                nccl_of(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so") or version
            )
        if group == "mpi":
            facts["mpi_library"] = "torch"
        if group == "mpi4py":
            from backends.mpi.library import library_version

            facts |= {"mpi_library": "mpi4py", "mpi_version": library_version()}
        return facts

    def teardown(self) -> None:
        """Destroy the group, and finalize MPI: mpirun counts a rank that ends without MPI_Finalize
        as failed. Collective.
        """
        group = dist.get_backend() if dist.is_initialized() else None
        if group is not None:
            dist.destroy_process_group()
        if group == "mpi4py":
            from backends.mpi.library import finalize

            finalize()


def _all_gather(tensor: Tensor) -> list[Tensor]:
    """Every rank's tensor. Collective."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return parts


Groups = Mapping[tuple[int, ...], Any]
"""Process groups by their ranks."""
REDUCE_OPS: dict[ReduceOp, Any] = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}


class TorchCommunicator(Communicator):
    """Calls the function of ``torch.distributed`` of the same name, or its
    ``_into_tensor``/``_tensor`` form; synchronous.
    """

    library = "torch.distributed"

    def __init__(self, *, groups: Groups | None = None, ranks: Sequence[int] | None = None) -> None:
        super().__init__(
            rank=dist.get_rank(), ranks=ranks if ranks is not None else range(dist.get_world_size())
        )
        self._groups = groups or {}
        self._group = self._groups[self.ranks] if ranks is not None else None

    def all_reduce(self, tensor: Tensor, *, op: ReduceOp = "sum") -> None:
        dist.all_reduce(tensor, op=REDUCE_OPS[op], group=self._group)

    def reduce(self, tensor: Tensor, *, op: ReduceOp, root: int) -> None:
        dist.reduce(tensor, dst=root, op=REDUCE_OPS[op], group=self._group)

    def broadcast(self, tensor: Tensor, *, root: int) -> None:
        dist.broadcast(tensor, src=root, group=self._group)

    def all_gather(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        dist.all_gather_into_tensor(out, tensor, group=self._group)
        return out

    def reduce_scatter(self, tensor: Tensor, *, out: Tensor, op: ReduceOp = "sum") -> Tensor:
        dist.reduce_scatter_tensor(out, tensor, op=REDUCE_OPS[op], group=self._group)
        return out

    def gather(self, tensor: Tensor, *, root: int, out: Tensor) -> None:
        parts = list(out.chunk(len(self.ranks))) if self.rank == root else None
        dist.gather(tensor, gather_list=parts, dst=root, group=self._group)

    def scatter(self, tensor: Tensor, *, root: int, out: Tensor) -> None:
        parts = list(tensor.chunk(len(self.ranks))) if self.rank == root else None
        dist.scatter(out, scatter_list=parts, src=root, group=self._group)

    def all_to_all(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        dist.all_to_all_single(out, tensor, group=self._group)
        return out

    def send(self, tensor: Tensor, *, to: int) -> None:
        dist.send(tensor, dst=to, group=self._group)

    def recv(self, tensor: Tensor, *, source: int) -> None:
        dist.recv(tensor, src=source, group=self._group)

    def group(self, ranks: Sequence[int]) -> Communicator:
        """Return the communicator of a group that was made with this one."""
        return type(self)(groups=self._groups, ranks=ranks)


class NaivePrepared(Prepared):
    """Gradients are exchanged before each step, unless it is local."""

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """``sync_gradients``, unless the step is local."""
        if not self.is_local:
            sync_gradients(self.bare)
        yield


class Naive(TorchDistributed):
    """Data parallelism as the tutorials write it by hand: ``sync_hyperparameters`` once, and one
    ``all_reduce`` for each parameter after backward (``sync_gradients``).

    The value of DDP and Horovod is their gain over this: it has no buckets, no fusion, no overlap
    with backward. Source: S. Arnold, "Writing Distributed Applications with PyTorch"
    (``average_gradients``).
    """

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Rank 0 sends its parameters and buffers to each other rank in turn. Collective."""
        sync_hyperparameters(model)
        return NaivePrepared(model, build_optimizer(model))


@torch.no_grad()
def sync_hyperparameters(model: nn.Module) -> None:
    """Every rank takes rank 0's parameters and buffers, by send and recv. Collective."""
    for tensor in state_tensors(model).values():
        sent = tensor.contiguous()  # itself, unless its memory is in another order
        if dist.get_rank() == 0:
            for rank in range(1, dist.get_world_size()):
                dist.send(sent, dst=rank)
        else:
            dist.recv(sent, src=0)
            tensor.copy_(sent)


@torch.no_grad()
def sync_gradients(model: nn.Module) -> None:
    """Every gradient becomes the mean of all ranks' gradients. Collective.

    A parameter without gradient counts as zero, as in Horovod: a rank must not wait for an exchange
    that others skip.
    """
    for parameter in trained_parameters(model).values():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= dist.get_world_size()
