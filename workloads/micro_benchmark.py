"""The MicroBenchmark interface: what is repeated instead of trained. Named in a plan as a workload is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import BaseModel

from measurement.communicator import Communicator
from measurement.record import Case
from workloads.base import NoOptions


class Repetition(ABC):
    """One case on one rank, its tensors made: ``fill``, ``run`` and ``check`` once, then ``clear`` and ``run`` under the clock."""

    @abstractmethod
    def fill(self) -> None:
        """Inputs whose right result is known, other ones on each rank. Not collective."""

    @abstractmethod
    def run(self) -> None:
        """The operation once: all that is timed. Collective; a rank that takes no part returns at once."""

    @abstractmethod
    def check(self) -> str | None:
        """After ``fill`` and ``run``: what this rank's result holds where it is wrong; None where it is right. Not collective."""

    def clear(self) -> None:
        """Inputs that stay as they are however often ``run`` follows; a sum in place would grow without end. Not collective."""
        return


class MicroBenchmark(ABC):
    """Operations by name and size. Every rank makes its own; it speaks to the others through a ``Communicator`` alone."""

    Options: ClassVar[type[BaseModel]] = NoOptions
    """What a plan may set under ``workload_options``."""
    sample_unit: ClassVar[str] = "bytes"

    def __init__(self, *, seed: int, options: BaseModel | None = None) -> None:
        self.seed = seed
        self.options = options if options is not None else self.Options()

    @abstractmethod
    def cases(self, world_size: int) -> Sequence[Case]:
        """The cells to measure among so many ranks, each with a name of its own; the same on every rank and in the driver.

        Raises:
            PlanError: there is nothing to measure among so few.
        """

    def groups(self, world_size: int) -> Sequence[Sequence[int]]:
        """Subsets of the ranks whose communicator ``repetition`` will ask for."""
        return ()

    @abstractmethod
    def why_not(self, case: Case, communicator: Communicator) -> str | None:
        """Why a case cannot be measured there; None where it can. The same on every rank."""

    @abstractmethod
    def repetition(self, case: Case, communicator: Communicator, *, device: torch.device) -> Repetition:
        """The case with new tensors on ``device``. Not collective."""
