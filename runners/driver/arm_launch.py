"""One arm in one launch: its session and the record that is being filled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from measurement.records.record import LaunchRecord, RankReport
from runners.driver.arm_session import ArmSession
from runners.driver.diagnosis import ArmFailed
from runners.protocol.messages import Job, ParityReport

Say = Callable[[str], None]


@dataclass(kw_only=True)
class ArmLaunch:
    """An arm in one launch: its session and the record that is being filled."""

    session: ArmSession
    job: Job
    record: LaunchRecord
    say: Say
    ready: list[RankReport] = field(default_factory=list)
    """What its ranks reported when they had started, before the first step: all arms compare at this moment, see ``conditions``."""
    gate: ParityReport | None = None
    """What its rank 0 found in the parity gate; None: not taken, or a micro-benchmark."""
    has_local_steps: bool = True
    """See ``Backend.has_local_steps``."""

    @property
    def is_floor(self) -> bool:
        """Whether it is the arm without any library, whose blocks are all without exchange and which is compared with none."""
        return self.record.role == "floor"

    @property
    def conditions(self) -> LaunchRecord:
        """The record with the ranks as they started: DDP, for one, rebuilds its buckets in an arm's first steps."""
        return self.record.model_copy(update={"ranks": self.ready})

    @property
    def is_running(self) -> bool:
        """Whether this arm is still to be measured."""
        return self.record.status == "ok" and not self.session.exit_codes

    def refuse(self, rehearsal: LaunchRecord) -> None:
        """Do not start this arm: it failed in the rehearsal, as this record of it says."""
        self.record.status, self.record.error, self.record.parity = rehearsal.status, rehearsal.error, rehearsal.parity

    def run_unless_failed(self, act: Callable[[ArmLaunch], None]) -> None:
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
        self.say("\n".join([f"{self.session.name} {failed.status}: {failure.message}", *failure.excerpt]))
        if failure.excerpt and failure.ranks:
            self.say(f"the rank's whole log: {self.session.log_of(failure.ranks[0])}")


def merge_reports(new: RankReport, old: RankReport) -> RankReport:
    """A rank's last report, with model and optimizer of its first: the last knows the rebuilt buckets, but may have no model."""
    return new.model_copy(update={"optimizer": new.optimizer or old.optimizer, "model": new.model or old.model})
