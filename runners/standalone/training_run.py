"""A standalone training: it prints a line for each epoch, and more if asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from statistics import fmean
from typing import TYPE_CHECKING

from measurement.plans.settings import EpochRecord, TrainingSettings
from measurement.records.record import BlockRecord, LaunchRecord, ranks_of
from runners.protocol.messages import EpochCommand, EpochReport, combine
from runners.rank.engine import Engine
from runners.rank.epochs import EpochProgress
from runners.rank.trainer import DATA_WAIT
from runners.standalone.flags import RunOptions
from runners.standalone.throughput import require_together

if TYPE_CHECKING:
    from runners.event_log import TensorboardLog

Say = Callable[[str], None]


class TrainingRun:
    """One rank of a standalone training. Its methods are collective."""

    def __init__(self, engine: Engine, options: RunOptions, *, say: Say, events: TensorboardLog | None = None) -> None:
        """``events`` are rank 0's."""
        assert engine.epochs is not None and engine.job.training is not None
        self._engine, self._training, self._runner = engine, engine.job.training, engine.epochs
        self._options, self._say, self._events = options, say, events
        self._rank = engine.runner.world.rank
        self._printed = 0
        """Steps of this epoch that lines were printed of."""

    def run(self, record: LaunchRecord) -> None:
        """Train until the last epoch; the record gets epochs and blocks, on every rank."""
        began = time.monotonic()
        for epoch in range(self._training.epochs):
            self._epoch(epoch, record, began)
        record.measuring_s = time.monotonic() - began
        self._say(outcome(self._training, record.epochs))

    def _epoch(self, epoch: int, record: LaunchRecord, began: float) -> None:
        started = time.monotonic()
        self._printed = 0

        def pause(epoch: int, progress: EpochProgress) -> None:
            self._print_progress(record, epoch, progress)

        report = self._runner.run(EpochCommand(turn=epoch, epoch=epoch), pause=pause, pause_every=self._options.print_every)
        reports = self._engine.backend.all_gather_object(report, EpochReport)
        require_together([each.drift for each in reports])
        done, wall_s = combine(reports, epoch=epoch), time.monotonic() - started
        block = BlockRecord.joined(
            reports[0].block, ranks_of([each.block for each in reports]), started_s=started - began, wall_s=wall_s
        )
        record.epochs.append(done)
        record.blocks.append(block)
        self._say(line(done, epochs=self._training.epochs, unit=record.sample_unit))
        if self._events is not None:
            self._events.epoch(done, block)

    def _print_progress(self, record: LaunchRecord, epoch: int, progress: EpochProgress) -> None:
        """Print how the steps went since the last line, over all ranks."""
        new = slice(self._printed, None)
        own = (progress.losses[new], sum(progress.samples[new]), progress.phases_s[new])
        ranks = self._engine.backend.all_gather_object(own, tuple[list[float], int, list[list[float]]])
        losses = [fmean(of_ranks) for of_ranks in zip(*(losses for losses, _, _ in ranks), strict=True)]
        seconds = max(sum(map(sum, phases)) for _, _, phases in ranks)
        waited = max(sum(step[DATA_WAIT] for step in phases) for _, _, phases in ranks)
        done = len(progress.losses)
        left = (self._training.epochs - epoch) * self._runner.steps - done
        self._say(
            f"epoch {epoch + 1}/{self._training.epochs}  step {done}/{self._runner.steps}  loss {fmean(losses):.4f}  "
            f"{sum(samples for _, samples, _ in ranks) / seconds:,.1f} {record.sample_unit}/s  data wait {waited / seconds:.0%}  "
            f"{timedelta(seconds=round(left * seconds / len(losses)))} left"
        )
        self._printed = done


def line(epoch: EpochRecord, *, epochs: int, unit: str) -> str:
    """Say how an epoch went, in one line."""
    figures = epoch.figures()
    parts = [f"epoch {epoch.epoch + 1:>{len(str(epochs))}}/{epochs}", f"loss {figures['train_loss']:.4f}"]
    if "train_top5" in figures:
        parts.append(f"top-1 {figures['train_top1']:.2%}  top-5 {figures['train_top5']:.2%}")
    if "held_out_loss" in figures:
        top1, top5 = figures["held_out_top1"], figures["held_out_top5"]
        parts.append(f"held out: loss {figures['held_out_loss']:.4f}  top-1 {top1:.2%}  top-5 {top5:.2%}")
    parts += [f"{epoch.count / epoch.train_s:,.1f} {unit}/s", f"learning rate {epoch.learning_rates[-1]:.4g}"]
    return "  ".join(parts)


def outcome(training: TrainingSettings, epochs: list[EpochRecord]) -> str:
    """Say how the training ended, with the time to accuracy if a target was set."""
    trained = f"{sum(epoch.train_s for epoch in epochs):.1f} s of training"
    target = training.target_accuracy
    if target is None:
        return trained
    reached_s = training.time_to_accuracy_s(epochs)
    if reached_s is not None:
        first = next(epoch for epoch in epochs if training.is_reached(epoch))
        return f"target accuracy {target:g} reached in epoch {first.epoch + 1}: {reached_s:.1f} s of training"
    found = [figures["held_out_top1"] for epoch in epochs if "held_out_top1" in (figures := epoch.figures())]
    progress = f"best: {max(found):.4f}" if found else "nothing is held out"
    return f"target accuracy {target:g} not reached in {len(epochs)} epochs ({progress}): {trained}"
