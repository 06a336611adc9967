"""What one launch gathers about one arm: its session, its record in the making, its raw rows; and where the time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from measurement.record import PHASES, BlockRecord, Failure, LaunchRecord, RankReport
from runners.arm_session import ArmFailed, ArmSession
from runners.job import BlockReport, Command, EpochReport

Say = Callable[[str], None]


@dataclass(kw_only=True)
class ArmLaunch:
    """An arm in one launch: its session, its record in the making, and its raw rows."""

    session: ArmSession
    record: LaunchRecord
    say: Say
    rows: list[dict[str, Any]] = field(default_factory=list)
    blocks: int = 0
    """Blocks begun, discarded ones included."""

    @property
    def is_running(self) -> bool:
        """Still to be measured."""
        return self.record.status == "ok" and not self.session.exit_codes

    def attempt(self, act: Callable[[ArmLaunch], None]) -> None:
        """Do something with an arm that still runs; its failure ends it and nothing else."""
        if not self.is_running:
            return
        try:
            act(self)
        except ArmFailed as failed:
            self.fail(failed.failure, status=failed.status)

    def fail(self, failure: Failure, *, status: str) -> None:
        """No (further) timing of this arm in this launch."""
        self.record.status = status  # type: ignore[assignment]
        self.record.error = failure
        self.session.end()
        self.say(f"{self.session.name} {status}: {failure.message}")

    def keep(self, block: BlockRecord, reports: Sequence[BlockReport | EpochReport]) -> list[dict[str, Any]]:
        """A block, or an epoch, that every rank has finished; its rows."""
        self.record.blocks.append(block)
        rows = [row for report in reports for row in block_rows(block, report)]
        self.rows += rows
        return rows


@dataclass(kw_only=True)
class Clock:
    """Where the launch's time went, seconds."""

    began: float = field(default_factory=time.monotonic)
    training_s: float = 0.0
    starting_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        """Since the launch began."""
        return time.monotonic() - self.began


def block_record(
    command: Command, *, turn: int, number: int, block: int, started_s: float, wall_s: float, untimed_s: float
) -> BlockRecord:
    """What is written of a block; ``number`` is its round's."""
    return BlockRecord(
        turn=turn,
        round=number,
        block=block,
        kind=command.kind,
        case=command.case,
        steps=command.steps,
        repetitions=command.repetitions,
        started_s=started_s,
        wall_s=wall_s,
        untimed_s=untimed_s,
    )


def block_rows(block: BlockRecord, report: BlockReport | EpochReport) -> list[dict[str, Any]]:
    """One rank's steps of a block as rows of ``measurement.record.STEP_COLUMNS``."""
    return [
        {
            "rank": report.rank,
            "turn": block.turn,
            "round": block.round,
            "block": block.block,
            "kind": block.kind,
            "case": block.case,
            "step": step,
            "samples": samples,
            **{f"{phase}_s": seconds for phase, seconds in zip(PHASES, phases, strict=True)},
            "step_s": sum(phases),
        }
        for step, (samples, phases) in enumerate(zip(report.samples, report.phases_s, strict=True))
    ]


def with_first_optimizer(new: RankReport, old: RankReport) -> RankReport:
    """The last report knows more of the backend (rebuilt buckets); the first had a model and an optimizer for sure."""
    return new.model_copy(update={"optimizer": new.optimizer or old.optimizer, "model": new.model or old.model})
