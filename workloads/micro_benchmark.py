"""The MicroBenchmark interface: what is repeated, with no model to train.

A plan names one as its workload.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from measurement.communicator import Communicator
from measurement.records.record import Case
from workloads.base import PlannedWork


class Repetition(ABC):
    """One case on one rank, with its tensors.

    The runner calls ``fill``, ``run`` and ``check`` once, then ``clear``, then ``run`` a few times
    to warm up, then ``settle``. Then it calls ``run`` many times, which is timed.
    """

    def fill(self) -> None:
        """Fill the inputs, if there are any, with values whose result is known, different ones on
        each rank.

        Not collective.
        """
        return

    @abstractmethod
    def run(self) -> None:
        """Run the operation once.

        Only this is timed. Collective; a rank that takes no part returns at once.
        """

    def check(self) -> str | None:
        """Say what is wrong with this rank's result after ``fill`` and ``run``; None if it is
        right, or there is none. Not collective.
        """
        return None

    def clear(self) -> None:
        """Set inputs that no number of runs changes, since a sum in place would overflow.

        Not collective.
        """
        return

    def settle(self) -> None:
        """Consume work that was done ahead while the ranks waited for each other. Not
        collective.
        """
        return


class MicroBenchmark(PlannedWork, ABC):
    """Cases to repeat. Every rank makes its own, and communicates through a ``Communicator``
    only.
    """

    sample_unit: ClassVar[str] = "bytes"

    @abstractmethod
    def cases(self, world_size: int) -> Sequence[Case]:
        """List the cases to measure with ``world_size`` ranks, each with a unique name.

        Equal on all ranks and in the driver.

        Raises:
            PlanError: there are too few ranks.
        """

    def groups(self, world_size: int) -> Sequence[Sequence[int]]:
        """List the subsets of ranks for which ``repetition`` will ask the communicator for a
        group.
        """
        return ()

    def unsupported_reason(self, case: Case, communicator: Communicator) -> str | None:
        """Say why a communicator cannot run a case; None if it can.

        The answer is the same on every rank.
        """
        return None

    @abstractmethod
    def repetition(
        self, case: Case, communicator: Communicator, *, device: torch.device
    ) -> Repetition:
        """Return the case with new tensors on ``device``. Not collective."""
