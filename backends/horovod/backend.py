"""Horovod: ``hvd.DistributedOptimizer`` over Gloo, MPI or NCCL, and its single operations. Written
against Horovod 0.28.1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from backends.base import (
    HOROVOD_GLOO_TIMEOUT,
    WHILE_STOPPED_S,
    Backend,
    BuildOptimizer,
    Prepared,
    Setting,
    Store,
    bytes_of,
    state_tensors,
    tensor_of,
    trained_parameters,
)
from backends.horovod.optimizer import (
    REDUCED,
    HorovodPrepared,
    LayoutKept,
    broadcast_state,
    carry_over,
    require_wrappable,
)
from backends.horovod.options import (
    CONSTRUCTORS,
    HorovodOptions,
    knobs_asked_for,
    knobs_in_force,
)
from backends.horovod.rendezvous import rendezvous_over_gloo
from backends.horovod.timeline import traced
from backends.mpi.library import find_wheel
from backends.remade_optimizer import without_constructor
from measurement.agent.ringside_agent.place import HOROVOD, MPI, RENDEZVOUS, World
from measurement.communicator import Communicator, ReduceOp
from measurement.distances import arithmetic_of
from measurement.errors import LaunchError, PlanError, shortened
from measurement.host import nccl_of, version_of
from measurement.records.record import Span


class Horovod(Backend):
    """``hvd.DistributedOptimizer`` as its documentation shows it."""

    interface_version = 1
    Options = HorovodOptions
    options: HorovodOptions
    _rendezvous: Any = None
    """Rank 0's rendezvous server, where ``horovodrun`` runs none."""
    steered_by = frozenset({"horovod"})
    transports = ("gloo", "mpi", "nccl")
    customary_launchers = ("horovodrun", "mpirun", "srun")

    def check(self, *, world_size: int) -> None:
        """Refuse what would make arms take different steps."""
        passes, micro_steps = self.options.backward_passes_per_step, self.micro_steps
        if passes is not None and passes != micro_steps:
            raise PlanError(
                f"backward_passes_per_step = {passes} but micro_steps = {micro_steps}: arms would"
                f" take different steps; set micro_steps: {passes} in the plan, which holds for all"
                " arms"
            )

    def check_model(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        missing: Sequence[str],
        sparse: Sequence[str],
    ) -> list[str]:
        """Horovod sends zeros for missing gradients, and gathers the rows of sparse ones."""
        options = self.options
        dtypes = REDUCED | ({torch.bfloat16} if options.compression == "fp16" else set())
        for name, parameter in trained_parameters(model).items():
            if parameter.dtype not in dtypes:
                raise PlanError(
                    f"Horovod 0.28.1 reduces no {str(parameter.dtype).removeprefix('torch.')}"
                    f" gradients, which '{name}' has; keep the weights in float32, which precision:"
                    " amp-bf16 or amp-fp16 computes with less, or leave this arm out"
                )
        require_wrappable(optimizer)
        notes = []
        if missing:
            notes.append(
                f"Horovod exchanges zeros for {shortened(missing)}, which get no gradient, and its"
                " optimizer steps them: weight decay changes them, as it does not under DDP"
            )
        if sparse and options.op == "Adasum":
            raise PlanError(
                f"op 'Adasum' does not support sparse gradients, which {shortened(sparse)} have;"
                " use op 'Average'"
            )
        if sparse and not options.sparse_as_dense:
            notes.append(
                "Horovod gathers the rows of sparse gradients from all ranks (allgather);"
                " sparse_as_dense: true adds them up"
            )
        return notes

    @property
    def has_local_steps(self) -> bool:
        """Adasum's optimizer has no step without exchange."""
        return self.options.op != "Adasum"

    def needs(self) -> frozenset[str]:
        """Over MPI a launcher of MPI; else the variables by which Horovod finds its ranks."""
        return frozenset({MPI} if self.transport == "mpi" else {HOROVOD})

    def imports(self) -> Mapping[str, str]:
        return {"horovod": "Horovod"}

    def environment(self) -> dict[str, str]:
        """The variables that Horovod reads once, when it starts."""
        variables = knobs_asked_for(self.options)
        if self.transport in ("gloo", "mpi"):
            variables["HOROVOD_CPU_OPERATIONS"] = self.transport
        if self.transport != "mpi":
            variables[HOROVOD_GLOO_TIMEOUT] = str(WHILE_STOPPED_S)
        return variables

    def search_space(self, *, has_buffers: bool, several_hosts: bool) -> list[Setting]:
        """Fusion, cycle, cache, groups; hierarchical all_reduce where there are several hosts;
        compression, which is lossy.
        """
        space = [
            Setting(
                option="fusion_threshold_mb",
                values=(0.0, 1.0, 4.0, 16.0, 64.0, None, 256.0),
                variable="HOROVOD_FUSION_THRESHOLD",
            ),
            Setting(
                option="cycle_time_ms",
                values=(0.1, 0.5, None, 2.5, 5.0, 10.0),
                variable="HOROVOD_CYCLE_TIME",
            ),
            Setting(option="cache_capacity", values=(0, None), variable="HOROVOD_CACHE_CAPACITY"),
            Setting(option="num_groups", values=(0, 1, 4)),
        ]
        if several_hosts and self.transport == "nccl":
            space.append(
                Setting(
                    option="hierarchical_allreduce",
                    values=(None, True),
                    variable="HOROVOD_HIERARCHICAL_ALLREDUCE",
                )
            )
        return [*space, Setting(option="compression", values=("none", "fp16"), is_lossy=True)]

    def users_code(self) -> list[str]:
        """The variables for the shell, and the optimizer's arguments."""
        variables = knobs_asked_for(self.options)
        exports = [f"export {name}={value}" for name, value in variables.items()]
        arguments = ["optimizer", "named_parameters=model.named_parameters()"]
        chosen = self.options.model_dump(include=CONSTRUCTORS, exclude_defaults=True)
        for name, value in chosen.items():
            shown = f"hvd.Compression.{value}" if name == "compression" else repr(value)
            arguments.append(f"{name}={shown}")
        if self.options.op != "Average":
            arguments.append(f"op=hvd.{self.options.op}")
        if self.micro_steps > 1:
            arguments.append(f"backward_passes_per_step={self.micro_steps}")
        return [*exports, f"optimizer = hvd.DistributedOptimizer({', '.join(arguments)})"]

    def setup(self, world: World, *, device: torch.device, store: Store | None = None) -> World:
        """``hvd.init()``.

        Collective. Horovod's rendezvous is by its launcher's variables; without these, by
        ``store``.
        """
        find_wheel()
        import horovod.torch as hvd

        self._hvd = hvd
        self._device = device
        built = _transports_of(hvd)
        if self.transport not in (None, *built):  # it would silently use another
            raise LaunchError(
                f"this Horovod was built with {', '.join(built) or 'no transport'}, not"
                f" '{self.transport}'; see 'ringside doctor', or rebuild it with"
                f" HOROVOD_WITH_{str(self.transport).upper()}=1"
            )
        os.environ.setdefault(HOROVOD_GLOO_TIMEOUT, str(math.ceil(self.timeout.total_seconds())))
        if HOROVOD not in world.gives:  # one rank without a launcher, which MPI would look for
            os.environ.setdefault("HOROVOD_CONTROLLER", "gloo")
            os.environ.setdefault("HOROVOD_CPU_OPERATIONS", "gloo")
        if self.transport == "mpi":
            # under srun it would not look for MPI by itself
            os.environ.setdefault("HOROVOD_CONTROLLER", "mpi")
        elif self.transport == "gloo" and RENDEZVOUS in world.gives and world.world_size > 1:
            self._rendezvous = rendezvous_over_gloo(world, store)
        self._process_sets = {tuple(ranks): hvd.ProcessSet(list(ranks)) for ranks in self.groups}
        hvd.init(process_sets=[*self._process_sets.values()])
        return replace(
            world,
            rank=hvd.rank(),
            world_size=hvd.size(),
            local_rank=hvd.local_rank(),
            local_world_size=hvd.local_size(),
            node_rank=hvd.cross_rank(),
        )

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Broadcast rank 0's state and wrap the optimizer. Collective.

        An optimizer's empty state is not broadcast: ``broadcast_optimizer_state`` would take a real
        step with zero gradients, which changes weights by weight decay, and Adam's moments (Horovod
        0.28.1).
        """
        hvd, optimizer = self._hvd, build_optimizer(model)
        require_wrappable(optimizer)
        compression = getattr(hvd.Compression, self.options.compression)
        if not all(part.is_contiguous() for part in trained_parameters(model).values()):
            compression = LayoutKept(compression)
        wrapped = hvd.DistributedOptimizer(
            without_constructor(optimizer),
            named_parameters=model.named_parameters(),
            compression=compression,
            backward_passes_per_step=self.micro_steps,
            op=getattr(hvd, self.options.op),
            gradient_predivide_factor=self.options.gradient_predivide_factor,
            num_groups=self.options.num_groups,
            sparse_as_dense=self.options.sparse_as_dense,
        )
        carry_over(optimizer, wrapped)
        broadcast_state(hvd, state_tensors(model))
        if optimizer.state:
            hvd.broadcast_optimizer_state(wrapped, root_rank=0)
        return HorovodPrepared(model, wrapped, micro_steps=self.micro_steps, op=self.options.op)

    def traced(self, prepared: Prepared) -> AbstractContextManager[list[Span]]:
        """Horovod's own timeline, which rank 0 writes, and when each rank submitted its tensors."""
        return traced(self._hvd, prepared.optimizer)

    def synchronize_batch_norm(self, model: nn.Module) -> nn.Module:
        """``hvd.SyncBatchNorm``, module by module: Horovod has no conversion of its own."""
        for name, module in model.named_children():
            setattr(model, name, self.synchronize_batch_norm(module))
        if not isinstance(model, nn.modules.batchnorm._BatchNorm):
            return model
        arguments = (model.eps, model.momentum, model.affine, model.track_running_stats)
        synchronised: nn.Module = self._hvd.SyncBatchNorm(model.num_features, *arguments)
        synchronised._parameters, synchronised._buffers = model._parameters, model._buffers
        return synchronised.train(model.training)

    def all_gather_bytes(self, data: bytes) -> Sequence[bytes]:
        """Horovod gathers tensors of unequal lengths; another gather gives the lengths.

        Collective.
        """
        lengths = self._hvd.allgather(torch.tensor([len(data)]), name="ringside.lengths")
        everyone = self._hvd.allgather(tensor_of(data), name="ringside.bytes")
        return [bytes_of(part) for part in everyone.split(lengths.tolist())]

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Sends their number first. Collective."""
        length = self._hvd.broadcast(torch.tensor([len(data)]), root_rank=0, name="ringside.length")
        buffer = (
            tensor_of(data)
            if self._hvd.rank() == 0
            else torch.empty(int(length), dtype=torch.uint8)
        )
        return bytes_of(self._hvd.broadcast(buffer, root_rank=0, name="ringside.broadcast"))

    def barrier(self) -> None:
        """Collective."""
        self._hvd.barrier()

    def communicator(self) -> Communicator:
        """Horovod's own functions."""
        return HorovodCommunicator(self._hvd, process_sets=self._process_sets)

    def describe(self) -> dict[str, Any]:
        """What the library was built with, which controller and operations it runs, and its
        settings.

        Horovod 0.28.1 has no call that returns the fusion threshold, cycle time or cache capacity
        in force. ``*_source`` says whether they are from this process's environment or the
        library's documented default.
        """
        import horovod

        hvd = self._hvd
        controller = "mpi" if hvd.mpi_enabled() else "gloo"
        transport = os.environ.get("HOROVOD_CPU_OPERATIONS", controller).lower()
        if self._device.type == "cuda" and hvd.nccl_built():
            transport = "nccl"
        facts: dict[str, Any] = {
            "library": "horovod",
            "version": horovod.__version__,
            "controller": controller,
            "transport": transport,
            "built_with": _transports_of(hvd),
            **self.options.model_dump(
                exclude={"fusion_threshold_mb", "cycle_time_ms", "cache_capacity"}
            ),
            "backward_passes_per_step": self.micro_steps,
        }
        if transport == "nccl":
            from horovod.torch import mpi_lib_v2

            facts["nccl"] = nccl_of(mpi_lib_v2.__file__) or version_of(hvd.nccl_built())
        return facts | knobs_in_force(os.environ)

    def teardown(self) -> None:
        """``hvd.shutdown()``. Collective."""
        if hasattr(self, "_hvd"):
            self._hvd.shutdown()
        if self._rendezvous is not None:
            self._rendezvous.stop()

    @property
    def gradient_scale(self) -> float | None:
        """The number of ranks for Sum; Adasum is not a linear function of the ranks' gradients."""
        if self.options.op == "Adasum":
            return None
        return float(self._hvd.size()) if self.options.op == "Sum" else 1.0

    @property
    def gradient_tolerance(self) -> float:
        """The tolerance of the dtype in which gradients are exchanged."""
        return arithmetic_of(
            "float16" if self.options.compression == "fp16" else "float32"
        ).gradient


def _transports_of(hvd: Any) -> list[str]:
    """What the installed Horovod was built with."""
    return [name for name in ("mpi", "gloo", "nccl") if getattr(hvd, f"{name}_built")()]


ProcessSets = Mapping[tuple[int, ...], Any]
"""``hvd.ProcessSet`` by their ranks."""
UNSUPPORTED, NOT_REDUCED = ("bfloat16",), ("int8", "uint8")
"""Types of tensors that Horovod 0.28.1 takes nowhere, and not where it reduces."""
HOROVOD_OPS: dict[ReduceOp, str] = {
    "sum": "Sum",
    "prod": "Product",
    "min": "Min",
    "max": "Max",
    "avg": "Average",
}


class HorovodCommunicator(Communicator):
    """Horovod's functions, each called with a name that is the same in every repetition.

    Without a name Horovod makes a new one for every call, and its response cache never hits. Its
    own ``DistributedOptimizer`` names every tensor too.
    """

    library = "Horovod"

    def __init__(
        self, hvd: Any, *, process_sets: ProcessSets, ranks: Sequence[int] | None = None
    ) -> None:
        super().__init__(rank=hvd.rank(), ranks=ranks if ranks is not None else range(hvd.size()))
        self._hvd = hvd
        self._process_sets = process_sets
        self._among = {"process_set": process_sets[self.ranks]} if ranks is not None else {}

    def _name(self, operation: str, tensor: Tensor) -> str:
        return f"{operation}.{tensor.numel()}.{tensor.dtype}.{len(self.ranks)}"

    def _op(self, op: ReduceOp) -> Any:
        return getattr(self._hvd, HOROVOD_OPS[op])

    def unsupported_reason(
        self, operation: str, *, op: ReduceOp | None = None, dtype: str = "float32"
    ) -> str | None:
        """What Horovod 0.28.1's torch binding refuses: it has no functions for these types, and no
        such reduce-scatter.
        """
        if dtype in UNSUPPORTED or (op is not None and dtype in NOT_REDUCED):
            return f"not offered by {self.library} for {dtype}"
        if operation == "reduce_scatter" and op not in ("sum", "avg"):
            return f"not offered by {self.library}, whose reducescatter sums and averages only"
        return super().unsupported_reason(operation, op=op, dtype=dtype)

    def all_reduce(self, tensor: Tensor, *, op: ReduceOp = "sum") -> None:
        name = self._name(f"all_reduce.{op}", tensor)
        self._hvd.allreduce_(tensor, op=self._op(op), name=name, **self._among)

    def broadcast(self, tensor: Tensor, *, root: int) -> None:
        self._hvd.broadcast_(
            tensor, root_rank=root, name=self._name("broadcast", tensor), **self._among
        )

    def all_gather(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """Gather into a new tensor: Horovod allocates the result, and ``out`` is not used."""
        gathered: Tensor = self._hvd.allgather(
            tensor, name=self._name("all_gather", tensor), **self._among
        )
        return gathered

    def reduce_scatter(self, tensor: Tensor, *, out: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Reduce and scatter into a new tensor: Horovod allocates the result, and ``out`` is not
        used.
        """
        name = self._name(f"reduce_scatter.{op}", tensor)
        share: Tensor = self._hvd.reducescatter(tensor, op=self._op(op), name=name, **self._among)
        return share

    def all_to_all(self, tensor: Tensor, *, out: Tensor) -> Tensor:
        """Exchange into a new tensor: Horovod allocates the result, and ``out`` is not used."""
        received: Tensor = self._hvd.alltoall(
            tensor, name=self._name("all_to_all", tensor), **self._among
        )
        return received

    def group(self, ranks: Sequence[int]) -> Communicator:
        """Return the communicator of a process set that was made when Horovod started."""
        return type(self)(self._hvd, process_sets=self._process_sets, ranks=ranks)
