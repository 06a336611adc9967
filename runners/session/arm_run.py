"""An arm of a launch, as the launch sees it: its session and the record that is filled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from measurement.records.block import HostUse
from measurement.records.record import LaunchRecord, LineUse, RankReport
from runners.protocol import (
    Can,
    Command,
    FinishedReply,
    Job,
    Message,
    ParityReport,
    StartedReply,
)
from runners.session.diagnosis import ArmFailed

Expected = TypeVar("Expected", bound=Message)
Say = Callable[[str], None]
"""Tells the user something."""


@dataclass(frozen=True, kw_only=True)
class Exchange(Generic[Expected]):
    """What came of a command."""

    replies: list[Expected]
    """Every rank's, by rank."""
    took_s: float
    """From the command to the last reply."""
    hosts: dict[str, HostUse]
    """What the hosts did meanwhile; those are missing that cannot be read."""


class Session(Protocol):
    """What a launch needs of an arm's ranks, whether a driver started them or rank 0 leads them."""

    name: str
    started_s: float
    """When they were started last, by the monotonic clock."""
    starts: int
    """How often they were started in this launch."""
    restarting_s: float
    """Seconds that restarting them took."""

    @property
    def exit_codes(self) -> list[int | None]:
        """Those of the launchers; empty until they have ended."""

    def commands_as_run(self) -> list[dict[str, Any]]:
        """Host and argv of each command, for the record."""

    def command(self, seed: int) -> str:
        """The shell line that the arm stands for with a seed, for the record; empty if it is not
        known.
        """

    def log_of(self, rank: int) -> Path:
        """The path of a rank's log, or of what is kept of it."""

    def start(self, job: Job) -> None:
        """Start the ranks; returns at once."""

    def await_ready(self) -> list[StartedReply]:
        """Wait until all have built their models; returns their first reports, by rank, while they
        wait for a command.
        """

    def exchange(
        self, command: Command, expected: type[Expected], *, timeout_s: float
    ) -> Exchange[Expected]:
        """Have all ranks carry out a command and wait for their replies; raises ``ArmFailed`` if
        one does not.
        """

    def ask_to_finish(self) -> None:
        """Ask for the last reports, which ``finish`` waits for."""

    def finish(self) -> list[FinishedReply]:
        """Wait for the last reports."""

    def end(self) -> None:
        """End whatever still runs. Calling it twice is harmless."""


@dataclass(kw_only=True)
class ArmRun:
    """An arm in one launch: its session and the record that is being filled."""

    session: Session
    job: Job
    record: LaunchRecord
    say: Say
    ready: list[RankReport] = field(default_factory=list)
    """What its ranks reported when they had started, before the first step: all arms compare at
    this moment, see ``conditions``."""
    gate: ParityReport | None = None
    """Rank 0's report of the parity gate; None: not taken, or a micro-benchmark."""
    lines: Sequence[list[LineUse]] = ()
    """Times of the lines of a script's loop by rank, from its trial; empty: this launch takes
    them."""
    can: frozenset[Can] = frozenset()
    """What all its ranks support, as they reported when they had started."""

    @property
    def conditions(self) -> LaunchRecord:
        """The record with the ranks as they started: DDP, for one, rebuilds its buckets in an arm's
        first steps.
        """
        return self.record.model_copy(update={"ranks": self.ready})

    @property
    def is_running(self) -> bool:
        """Whether this arm is still to be measured."""
        return self.record.status == "ok" and not self.session.exit_codes

    def refuse(self, rehearsal: LaunchRecord) -> None:
        """Do not start this arm: it failed in the rehearsal, as this record of it says."""
        self.record.status, self.record.error, self.record.parity = (
            rehearsal.status,
            rehearsal.error,
            rehearsal.parity,
        )

    def run_unless_failed(self, act: Callable[[ArmRun], None]) -> None:
        """Call ``act`` on an arm that still runs. Its failure ends this arm and no other."""
        if not self.is_running:
            return
        try:
            act(self)
        except ArmFailed as failed:
            self.fail(failed)

    def fail(self, failed: ArmFailed) -> None:
        """Record the failure and end the arm: it is not timed any further in this launch."""
        self.record.status, self.record.error = failed.status, failed.failure
        failure = failed.failure
        self.session.end()
        self.say(
            "\n".join([f"{self.session.name} {failed.status}: {failure.message}", *failure.excerpt])
        )
        if failure.excerpt and failure.ranks:
            self.say(f"the rank's whole log: {self.session.log_of(failure.ranks[0])}")
