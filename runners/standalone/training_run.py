"""A standalone training: it prints a line for each epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from measurement.plans.settings import EpochRecord, TrainingSettings
from measurement.records.record import BlockRecord, LaunchRecord, ranks_of
from runners.protocol.messages import EpochCommand, EpochReport, combine
from runners.rank.engine import Engine
from runners.standalone.throughput import require_together

if TYPE_CHECKING:
    from runners.event_log import TensorboardLog


def train(engine: Engine, record: LaunchRecord, *, say: Callable[[str], None], events: TensorboardLog | None = None) -> None:
    """Train until the last epoch; the record gets epochs and blocks, on every rank. ``events`` are rank 0's. Collective."""
    assert engine.epochs is not None and engine.job.training is not None
    began = time.monotonic()
    for epoch in range(engine.job.training.epochs):
        started = time.monotonic()
        report = engine.epochs.run(EpochCommand(turn=epoch, epoch=epoch))
        reports = engine.backend.all_gather_object(report, EpochReport)
        require_together([each.drift for each in reports])
        done, wall_s = combine(reports, epoch=epoch), time.monotonic() - started
        ranks = ranks_of([each.block for each in reports])
        record.epochs.append(done)
        record.blocks.append(BlockRecord.joined(reports[0].block, ranks, started_s=started - began, wall_s=wall_s))
        say(line(done, epochs=engine.job.training.epochs, unit=record.sample_unit))
        if events is not None:
            events.epoch(done, record.blocks[-1])
    record.measuring_s = time.monotonic() - began
    say(outcome(engine.job.training, record.epochs))


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
