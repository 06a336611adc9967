"""The Backend interface.

The library (DDP, Horovod) is the backend; NCCL, Gloo and MPI are its transport.

A backend may be named by ``module:Class`` from anywhere; one file is enough. Modules here are
imported on machines where their library is missing (to read ``transports`` and ``Options``), so the
library itself is imported in ``setup``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter
from torch import Tensor, nn
from torch.optim import Optimizer

from measurement.agent.ringside_agent.place import World
from measurement.communicator import Communicator
from measurement.distances import EXACT
from measurement.environment import Library, refusal
from measurement.errors import PlanError
from measurement.plans.settings import PlanOptions
from measurement.records.record import Span

INTERFACE = 1
"""The version of ``Backend`` and ``Prepared``. A change that breaks existing backends raises it."""
BuildOptimizer = Callable[[nn.Module], Optimizer]
"""Makes the workload's optimizer for a model."""
Store = Any
"""A ``torch.distributed.Store``; Any, because stock builds without distributed lack the name."""


Value = TypeVar("Value")


class Prepared:
    """A model and its optimizer, connected to those of the other ranks.

    Made by ``Backend.prepare``.

    In each optimizer step the trainer calls ``zero_grad``, then for every micro-step ``model`` and
    ``backward`` (all but the last inside ``accumulating``), then ``step``. This class is a single
    process without any library; override what a library does differently.
    """

    owns_step: ClassVar[bool] = False
    """Whether the library clips and scales gradients by itself, so that the trainer cannot between
    ``backward`` and ``step``."""
    is_sharded: ClassVar[bool] = False
    """Whether parameters are spread over the ranks, so that a forward pass is collective."""
    is_local: bool = False
    """Whether steps exchange no gradients, see ``local_only``."""

    def __init__(
        self, bare: nn.Module, optimizer: Optimizer, *, model: nn.Module | None = None
    ) -> None:
        self.bare = bare
        """The module that was given to ``prepare``: it names parameters and buffers."""
        self.model = model if model is not None else bare
        """The model by which the loss is computed."""
        self.optimizer = optimizer
        """Its ``param_groups`` hold the learning rates in force."""
        self.keeps_gradients = False
        """Set before a step whose gradients will be read: a library that clears them in ``step``
        keeps a copy then."""

    def compile(self) -> None:
        """Compile the model by which the loss is computed."""
        compiled: Any = torch.compile(self.model)
        self.model = compiled

    def zero_grad(self) -> None:
        """Drop the gradients of the last step, by the optimizer as training loops do.

        By the model it takes longer.
        """
        self.optimizer.zero_grad()

    def backward(self, loss: Tensor) -> None:
        """Compute gradients.

        Collective in the last micro-step of libraries that exchange meanwhile, unless local.
        """
        loss.backward()

    def step(self) -> None:
        """Take the optimizer step with averaged gradients.

        Collective in libraries that exchange here, unless local.

        A backend that exchanges between ``backward`` and the step overrides ``exchanged``, not
        this: where gradients are clipped or unscaled, the trainer enters ``exchanged`` and calls
        ``optimizer.step()`` by itself.
        """
        with self.exchanged():
            self.optimizer.step()

    def accumulating(self) -> AbstractContextManager[None]:
        """A context for all micro-steps but the last: their gradients add up and are not exchanged.

        Not collective.
        """
        return nullcontext()

    @contextmanager
    def local_only(self) -> Iterator[None]:
        """A context in which steps exchange no gradients.

        Called only if ``Backend.has_local_steps``. Not collective.
        """
        self.is_local = True
        try:
            yield
        finally:
            self.is_local = False

    def exchanged(self) -> AbstractContextManager[None]:
        """A context for clipping, unscaling and the step, which need the averaged gradients.

        Gradients are exchanged on entry; ``optimizer.step()`` inside exchanges nothing more.
        Collective, unless local. Not called if ``owns_step``.
        """
        return nullcontext()

    def full_gradients(self) -> dict[str, Tensor]:
        """The gradients of the last step as plain tensors, by the parameter's name in ``bare``.

        Collective.

        Called after ``step``. Zeros where a parameter has none: Horovod fills them in, DDP does
        not.
        """
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in trained_parameters(self.bare).items()
        }

    def full_parameters(self) -> dict[str, Tensor]:
        """Parameters and buffers as plain tensors, named as in ``bare.state_dict()``.
        Collective.
        """
        return dict(self.bare.state_dict())

    def full_optimizer_state(self) -> dict[str, Any]:
        """What ``state_dict()`` of the workload's optimizer would be in a single process, in plain
        tensors. Collective.

        Only rank 0's is used.

        Raises:
            NotImplementedError: the library cannot give it, on any rank. Then it is not compared
                between arms.
        """
        return self.optimizer.state_dict()

    def kept_optimizer_state(self) -> list[Tensor]:
        """The tensors of optimizer state on this rank. Not collective."""
        return [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]


WHILE_STOPPED_S = 7 * 24 * 3600
"""Timeouts of a rank that the driver stops while other arms run, seconds. Lost ranks are detected
by other means."""
NCCL_HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
HOROVOD_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
WHILE_STOPPED = dict.fromkeys((HOROVOD_GLOO_TIMEOUT, NCCL_HEARTBEAT), str(WHILE_STOPPED_S))
"""Variables of such a rank. PyTorch's process group over NCCL ends a rank whose watchdog makes no
progress."""


class Backend(ABC):
    """Connects models and optimizers of all ranks.

    Life: ``__init__`` → ``setup`` → any number of ``prepare`` → ``teardown``. The driver, which
    only checks a plan, calls ``check``, ``needs`` and the like without ``setup``.

    ``setup``, ``prepare``, ``all_gather_*``, ``broadcast_*``, ``barrier`` and ``teardown`` are
    collective: every rank calls them.
    """

    interface_version: ClassVar[int]
    """The version of this interface that the backend is written for: ``interface_version = 1``."""
    takes_all_ranks_batches: ClassVar[bool] = False
    """Whether it is one process instead of all ranks of a plan, with their global batch as its
    local one."""
    exchanges: ClassVar[bool] = True
    """Whether it is compared with others. The floor, which never exchanges, is not."""
    Options: ClassVar[type[BaseModel]] = PlanOptions
    """What a plan may set under ``options``; names as in the library."""
    steered_by: ClassVar[frozenset[Library]] = frozenset()
    """The libraries of ``measurement.environment`` whose variables reach its
    ranks."""
    transports: ClassVar[tuple[str, ...]] = ()
    """Transports that a plan may choose; empty: there is no choice."""
    customary_launchers: ClassVar[tuple[str, ...]] = ("torchrun",)
    """Its usual launchers, the most usual first. The first that gives what it needs is the
    default."""
    groups: Sequence[Sequence[int]] = ()
    """Subsets of the ranks that its communicator will be asked for; set before ``setup``: Horovod
    makes its process sets then."""

    timeout: timedelta = timedelta(minutes=5)
    """How long ranks wait for each other: at the rendezvous and, if the library allows it, in each
    operation. Set before setup."""

    def __init__(
        self,
        *,
        transport: str | None = None,
        options: BaseModel | None = None,
        micro_steps: int = 1,
    ) -> None:
        self.transport = transport
        self.options = options if options is not None else self.Options()
        self.micro_steps = micro_steps

    @property
    def has_local_steps(self) -> bool:
        """Whether steps can be taken without gradient exchange (``Prepared.local_only``)."""
        return True

    def check(self, *, world_size: int) -> None:
        """Refuse, when the plan is read, what cannot work with this transport and these options.

        No I/O.

        Raises:
            PlanError: with what works.
        """
        return

    def check_device(self, kind: str) -> None:
        """Refuse a kind of device, ``cpu`` or ``cuda``, when the plan is read and when a rank
        starts. No I/O.

        Raises:
            PlanError: with what works.
        """
        return

    def check_model(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        missing: Sequence[str],
        sparse: Sequence[str],
    ) -> list[str]:
        """Refuse a model or optimizer that cannot be trained with this library, before it starts.

        No I/O, and not collective.

        Called by a rank after a trial of the workload: in a rehearsal, and before a training.

        Args:
            model: not wrapped, after a step, with its gradients; dtypes, layouts and buffers are
                those of a run.
            optimizer: the workload's, as ``prepare`` gets it.
            missing: names of trained parameters that got no gradient in this step.
            sparse: names of parameters with sparse gradients.

        Returns:
            What this backend does differently with such a model, a sentence each.

        Raises:
            PlanError: with what to do.
        """
        return []

    def refused_environment(self, environment: Mapping[str, str]) -> str | None:
        """Why ranks with these variables cannot be measured correctly, and what to do; None: they
        can.
        """
        return refusal(environment, self.steered_by)

    def needs(self) -> frozenset[str]:
        """What its ranks need of the launcher, see ``World.gives``; a launcher that does not give
        all of it is refused.
        """
        return frozenset()

    def imports(self) -> Mapping[str, str]:
        """Modules besides torch that its ranks import, with their names for users; ``--available``
        looks for them.
        """
        return {}

    def environment(self) -> dict[str, str]:
        """Variables the library must find when a rank starts; the launcher sets them.

        Read nothing from the environment.
        """
        return {}

    def search_space(self, *, has_buffers: bool, several_hosts: bool) -> Sequence[Setting]:
        """Options that ``ringside tune`` may search with this transport and these options; empty:
        it cannot be tuned. No I/O.

        Args:
            has_buffers: whether the model has buffers, such as batch-norm statistics.
            several_hosts: whether ranks run on several hosts.
        """
        return ()

    def users_code(self) -> list[str]:
        """These options as lines of a user's own script and shell, without those at their defaults.

        No I/O.
        """
        return []

    @abstractmethod
    def setup(self, world: World, *, device: torch.device, store: Store | None = None) -> World:
        """Connect the ranks. Collective.

        Args:
            world: this rank's place, by the launcher's variables.
            device: where this rank computes.
            store: for the rendezvous, already prefixed for this arm; None: the launcher's variables
                say where it is.

        Returns:
            This rank's place as the library counts it; the caller refuses a world size other than
            asked for.
        """

    @abstractmethod
    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Connect a model to those of the other ranks; afterwards all ranks have rank 0's
        parameters and buffers. Collective.

        May be called again with a new model: it must leave nothing behind.

        Args:
            model: this rank's, on its device, with weights of its own.
            build_optimizer: makes the workload's optimizer. Call it when the parameters are final:
                after sharding, if the library shards.
        """

    def traced(self, prepared: Prepared) -> AbstractContextManager[list[Span]]:
        """A context of traced steps; at its end, its list has the exchanges that torch's profiler
        does not see. Collective.
        """
        return nullcontext([])

    def synchronize_batch_norm(self, model: nn.Module) -> nn.Module:
        """Replace each batch norm by the library's synchronised one, with the same parameters and
        buffers.

        Called before ``prepare`` if a plan asks for it (``speed.sync_batchnorm``), on GPUs only.
        Not collective.

        Raises:
            PlanError: the library has none.
        """
        raise PlanError(
            f"speed.sync_batchnorm: {type(self).__name__} has no synchronised batch norm; leave it"
            " out, or use 'ddp'"
        )

    @abstractmethod
    def all_gather_bytes(self, data: bytes) -> Sequence[bytes]:
        """Every rank's bytes, by rank, on every rank; at least one byte each, and lengths may
        differ. Collective.
        """

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Rank 0's bytes on every rank; those of other ranks are not used. Collective."""
        return self.all_gather_bytes(data)[0]

    def all_gather_object(self, value: Value, kind: Any) -> list[Value]:
        """Every rank's value, by rank, on every rank.

        It is sent as JSON, never as a pickle, which could run code. Collective.

        Args:
            value: plain values, Pydantic models or dataclasses.
            kind: its type, the same on every rank, such as ``list[int]``; received values are
                checked by it.
        """
        # in a list, since only there the configuration for NaN and infinity holds for every type
        values: TypeAdapter[list[Any]] = TypeAdapter(
            list[kind], config=ConfigDict(ser_json_inf_nan="constants")
        )
        return [
            values.validate_json(text)[0]
            for text in self.all_gather_bytes(values.dump_json([value]))
        ]

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called. Collective."""

    def communicator(self) -> Communicator:
        """Single operations among the ranks, for micro-benchmarks; called after ``setup``.

        Collective.

        Raises:
            PlanError: the library offers none.
        """
        raise PlanError(
            f"backend '{type(self).__name__}' offers no collectives; use one that does, such as"
            " 'ddp' or 'horovod'"
        )

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Versions, transport, bucket or fusion sizes, as the library reports them; plain values.

        Not collective.

        Called after ``setup``, and again after a block, when a library may know more (DDP's rebuilt
        buckets).
        """

    @abstractmethod
    def teardown(self) -> None:
        """Disconnect, in order. Collective."""

    @property
    def gradient_scale(self) -> float | None:
        """Synchronised gradient = this × the mean of the ranks' local gradients; None: it is not a
        linear function of them.
        """
        return 1.0

    @property
    def gradient_tolerance(self) -> float:
        """Relative L2 error the synchronised gradient of a tensor may have."""
        return EXACT


def tensor_of(data: bytes) -> Tensor:
    """Return ``uint8[number of bytes]`` on the CPU; at least one byte is needed."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def bytes_of(tensor: Tensor) -> bytes:
    """The reverse of ``tensor_of``, from any device."""
    return tensor.cpu().numpy().tobytes()


def state_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of ``state_dict()``; a module's extra state may be anything."""
    return {
        name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)
    }


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters whose gradients are exchanged, by name."""
    return {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }


MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An option that changes how fast steps are."""

    option: str
    """As in a plan."""
    values: tuple[Any, ...]
    """Values to try, in order: neighbours are similar."""
    variable: str | None = None
    """Environment variable with the same effect; a plan that sets it has fixed the option."""
    only_with: Mapping[str, Any] = field(default_factory=dict)
    """Values of other options that it needs."""
    is_lossy: bool = False
    """Whether values other than the default send less than the gradients, so that training may
    change."""
