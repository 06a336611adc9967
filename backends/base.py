"""The Backend interface. The library (DDP, Horovod) is the backend; NCCL, Gloo and MPI are its transport.

A backend may be named by ``module:Class`` from anywhere; one file is enough. Modules here are imported on machines where
their library is missing (to read ``transports`` and ``Options``), so the library itself is imported in ``setup``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn
from torch.optim import Optimizer

from measurement.communicator import Communicator
from measurement.errors import PlanError
from measurement.world import World

Store = Any
"""A ``torch.distributed.Store``; Any, because stock builds without distributed lack the name."""


class NoOptions(BaseModel):
    """Options of a backend that has none; every backend's options refuse unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Backend(ABC):
    """Joins models and optimizers of all ranks.

    Life: ``__init__`` (every rank, also in the driver for checking) → ``setup`` → any number of ``prepare`` → ``teardown``.
    ``setup``, ``prepare``, ``all_gather_object``, ``barrier`` and ``teardown`` are collective: every rank must call them.
    """

    Options: ClassVar[type[BaseModel]] = NoOptions
    """What a plan may set under ``options``; names as in the library."""
    transports: ClassVar[tuple[str, ...]] = ()
    """Transports it can be asked for; empty: it has none to choose."""
    launchers: ClassVar[tuple[str, ...]] = ()
    """Launchers that can start it, the customary one first; empty: any."""
    groups: Sequence[Sequence[int]] = ()
    """Subsets of the ranks that its communicator will be asked for; set before ``setup``: Horovod makes its process sets then."""

    def __init__(self, *, transport: str | None = None, options: BaseModel | None = None, micro_steps: int = 1) -> None:
        self.transport = transport
        self.options = options if options is not None else self.Options()
        self.micro_steps = micro_steps

    @classmethod
    def check(cls, *, transport: str | None, options: BaseModel, micro_steps: int, world_size: int) -> None:
        """Refuse, when the plan is read, what cannot work. No I/O.

        Raises:
            PlanError: with what does work.
        """
        return

    @classmethod
    def launchers_for(cls, transport: str | None) -> tuple[str, ...]:
        """``launchers``, where a transport wants particular ones."""
        return cls.launchers

    @classmethod
    def environment(cls, *, transport: str | None, options: BaseModel) -> dict[str, str]:
        """Variables the library must find when a rank starts; the launcher sets them. Read nothing from the environment."""
        return {}

    @abstractmethod
    def setup(self, world: World, *, device: torch.device, store: Store | None = None) -> World:
        """Connect the ranks. Collective.

        Args:
            world: this rank's place as the launcher told it.
            device: where this rank computes.
            store: to meet over, already prefixed for this arm; None: as the launcher's variables say.

        Returns:
            This rank's place as the library counts it; the caller refuses a world size other than asked for.
        """

    @abstractmethod
    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Join model and optimizer with the other ranks'; afterwards all ranks have rank 0's state. Collective.

        Called anew, on new objects, before every block: it must leave nothing behind.
        """

    @abstractmethod
    def local_only(self, model: nn.Module, optimizer: Optimizer) -> AbstractContextManager[None]:
        """A context in which steps of the prepared pair exchange no gradients. Not collective."""

    def accumulating(self, model: nn.Module, optimizer: Optimizer) -> AbstractContextManager[None]:
        """A context for all backward passes of a step but the last, when ``micro_steps`` > 1. Not collective."""
        return self.local_only(model, optimizer)

    def exchanged(self, model: nn.Module, optimizer: Optimizer) -> AbstractContextManager[None]:
        """A context that is entered when all gradients have met, and in which ``optimizer.step()`` exchanges nothing more.

        Between backward and step, for what must see the averaged gradients: unscaling and clipping. A backend that exchanges
        in ``optimizer.step()`` does it on entry instead; inside ``local_only`` nothing is exchanged. Collective, unless local.
        """
        return nullcontext()

    @abstractmethod
    def all_gather_object(self, value: Any) -> Sequence[Any]:
        """Every rank's value, by rank, on every rank; any picklable value. Collective."""

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's value on every rank; what the others give is not looked at. Collective."""
        return self.all_gather_object(value)[0]

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called. Collective."""

    def communicator(self) -> Communicator:
        """Single operations among the ranks, for micro-benchmarks; called after ``setup``. Collective.

        Raises:
            PlanError: it has none.
        """
        raise PlanError(f"backend '{type(self).__name__}' offers no collectives; use one that does, such as 'ddp' or 'horovod'")

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Versions, transport, bucket or fusion sizes, read back from the library; plain values. Not collective.

        Called after ``setup``, and again after a block, when a library may know more (DDP's rebuilt buckets).
        """

    @abstractmethod
    def teardown(self) -> None:
        """Disconnect, in order. Collective."""

    @property
    def gradient_scale(self) -> float | None:
        """Synchronised gradient = this × the mean of the ranks' local gradients; None: no linear function of them."""
        return 1.0

    @property
    def gradient_tolerance(self) -> float:
        """Relative L2 error the synchronised gradient of a tensor may have."""
        return 1e-4
