"""Training to the end without a driver: epoch after epoch on all ranks, one line for each, kept in a checkpoint if asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from measurement.errors import PlanError
from measurement.record import LaunchRecord
from measurement.training import EpochRecord, Training
from runners import checkpoint
from runners.arm_launch import block_rows
from runners.checkpoint import Checkpoint
from runners.engine import Engine
from runners.epoch_records import combine, epoch_block
from runners.epochs import EpochRunner, Seen
from runners.event_log import EventLog
from runners.training_flags import Keeping

EXIT_BAD_INPUT = 2
Say = Callable[[str], None]


class TrainingRun:
    """One rank of a training that stands alone. Its methods are collective."""

    def __init__(
        self, engine: Engine, training: Training, *, keeping: Keeping | None, say: Say, events: EventLog | None = None
    ) -> None:
        """``events`` are rank 0's."""
        assert engine.epochs is not None
        self._engine, self._training, self._runner = engine, training, engine.epochs
        self._keeping, self._say, self._events = keeping, say, events
        self._rank = engine.runner.world.rank
        self._resumed = self._open() if keeping else None

    def _open(self) -> Checkpoint | None:
        """What is gone on with, on every rank. What is wrong with the file rank 0 alone finds out, and says; all end.

        Raises:
            PlanError: on rank 0.
            SystemExit: on the others.
        """
        found: Checkpoint | None = None
        error: PlanError | None = None
        if self._rank == 0:
            try:
                found = self._find()
            except PlanError as refused:
                error = refused
        found, refusal = self._engine.backend.broadcast_object((found, str(error) if error else None))
        if error is not None:
            raise error
        if refusal is not None:
            raise SystemExit(EXIT_BAD_INPUT)
        return found

    def _find(self) -> Checkpoint | None:
        assert self._keeping is not None
        path = self._keeping.path
        if self._keeping.resume:
            return checkpoint.read(path, trained=checkpoint.what_is_trained(self._engine.job, self._runner))
        if path.exists():
            raise PlanError(f"checkpoint '{path}' exists already; say --resume to go on with it, or remove it to begin anew")
        checkpoint.require_place(path)
        return None

    def run(self, record: LaunchRecord) -> list[dict[str, Any]]:
        """Train until the last epoch, or the target; the record gets epochs and blocks.

        Returns:
            All ranks' raw steps of the epochs that ended in this run, on every rank.
        """
        began, rows = time.monotonic(), []
        seen = self._begin(record)
        for epoch in range(len(record.epochs), self._training.epochs):
            if self._has_reached(record):
                break
            rows += self._epoch(epoch, record, seen, began)
            seen = None
        record.measuring_s = time.monotonic() - began
        self._say(outcome(self._training, record.epochs))
        return rows

    def _begin(self, record: LaunchRecord) -> Seen | None:
        """Put back what was kept; what was seen of an epoch that was not ended."""
        if self._resumed is None:
            return None
        resumed, self._resumed = self._resumed, None
        record.epochs = resumed.epochs()
        checkpoint.restore(resumed, self._runner)
        seen = resumed.seen(self._rank)
        self._say(f"resumed at epoch {resumed.epoch + 1}, step {len(seen.losses) + 1} of {self._runner.steps}")
        return seen

    def _has_reached(self, record: LaunchRecord) -> bool:
        return self._training.stop_at_target and bool(record.epochs) and self._training.is_reached(record.epochs[-1])

    def _epoch(self, epoch: int, record: LaunchRecord, seen: Seen | None, began: float) -> list[dict[str, Any]]:
        started = time.monotonic()

        def pause(epoch: int, seen: Seen) -> None:
            self._keep(record, epoch, seen)

        every = self._keeping.every_steps if self._keeping else None
        report = self._runner.run(epoch, seen=seen, pause=pause if every else None, pause_every=every)
        reports = self._engine.backend.all_gather_object(report)
        done = combine(reports, epoch=epoch)
        block = epoch_block(done, turn=epoch, started_s=started - began, wall_s=time.monotonic() - started)
        record.epochs.append(done)
        record.blocks.append(block)
        self._say(line(done, epochs=self._training.epochs, unit=record.sample_unit))
        self._keep(record, epoch + 1, Seen())
        rows = [row for each in reports for row in block_rows(block, each)]
        if self._events is not None:
            self._events.epoch(done, rows)
        return rows

    def _keep(self, record: LaunchRecord, epoch: int, seen: Seen) -> None:
        if self._keeping is None:
            return
        runner: EpochRunner = self._runner
        found = checkpoint.capture(self._engine.job, runner, epoch=epoch, seen=seen, finished=record.epochs)
        if self._rank == 0:
            found.write(self._keeping.path)


def line(epoch: EpochRecord, *, epochs: int, unit: str) -> str:
    """What is said of an epoch."""
    figures = epoch.figures()
    parts = [f"epoch {epoch.epoch + 1:>{len(str(epochs))}}/{epochs}", f"loss {figures['train_loss']:.4f}"]
    if "train_top5" in figures:
        parts.append(f"top-1 {figures['train_top1']:.2%}  top-5 {figures['train_top5']:.2%}")
    if "held_out_loss" in figures:
        top1, top5 = figures["held_out_top1"], figures["held_out_top5"]
        parts.append(f"held out: loss {figures['held_out_loss']:.4f}  top-1 {top1:.2%}  top-5 {top5:.2%}")
    parts += [f"{epoch.count / epoch.train_s:,.1f} {unit}/s", f"learning rate {epoch.learning_rates[-1]:.4g}"]
    return "  ".join(parts)


def outcome(training: Training, epochs: list[EpochRecord]) -> str:
    """What is said at the end: time to accuracy where a target was set."""
    trained = f"{sum(epoch.train_s for epoch in epochs):.1f} s of training"
    target = training.target_accuracy
    if target is None:
        return trained
    reached_s = training.time_to_accuracy_s(epochs)
    if reached_s is not None:
        first = next(epoch for epoch in epochs if training.is_reached(epoch))
        return f"target accuracy {target:g} reached in epoch {first.epoch + 1}: {reached_s:.1f} s of training"
    found = [figures["held_out_top1"] for epoch in epochs if "held_out_top1" in (figures := epoch.figures())]
    seen = f"best: {max(found):.4f}" if found else "nothing is held out"
    return f"target accuracy {target:g} not reached in {len(epochs)} epochs ({seen}): {trained}"
