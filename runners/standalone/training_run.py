"""A standalone training: it prints a line for each epoch, more if asked, and writes checkpoints if asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from statistics import fmean
from typing import TYPE_CHECKING

from measurement.errors import PlanError
from measurement.plans.settings import EpochRecord, TrainingSettings
from measurement.records.record import BlockRecord, LaunchRecord, ranks_of
from runners.processes.process_exit import EXIT_BAD_INPUT
from runners.protocol.messages import EpochCommand, EpochReport, combine
from runners.protocol.tensor_bytes import read_tensors
from runners.rank import checkpoint
from runners.rank.checkpoint import Checkpoint
from runners.rank.engine import Engine
from runners.rank.epochs import EpochProgress
from runners.rank.trainer import DATA_WAIT
from runners.standalone.flags import TrainingOptions
from runners.standalone.throughput import require_together
from workloads.base import EvaluationSums

if TYPE_CHECKING:
    from runners.event_log import TensorboardLog

NO_CHECKPOINT = b"-"

Say = Callable[[str], None]


class TrainingRun:
    """One rank of a standalone training. Its methods are collective."""

    def __init__(self, engine: Engine, options: TrainingOptions, *, say: Say, events: TensorboardLog | None = None) -> None:
        """``events`` are rank 0's."""
        assert engine.epochs is not None and engine.job.training is not None
        self._engine, self._training, self._runner = engine, engine.job.training, engine.epochs
        self._options, self._say, self._events = options, say, events
        self._rank = engine.runner.world.rank
        self._printed, self._logged = 0, 0
        """Steps of this epoch that lines were printed of, and whose losses TensorBoard has."""
        self._resumed = self._open() if options.checkpoint else None

    def _open(self) -> Checkpoint | None:
        """Read the checkpoint on rank 0 and give it to every rank. If it cannot be used, rank 0 says why and all ranks end.

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
        backend = self._engine.backend
        is_refused = backend.broadcast_object(error is not None, bool)
        if error is not None:
            raise error
        if is_refused:
            raise SystemExit(EXIT_BAD_INPUT)
        content = backend.broadcast_bytes(found.content() if found else NO_CHECKPOINT)
        return Checkpoint.of(read_tensors(content)) if content != NO_CHECKPOINT else None

    def _find(self) -> Checkpoint | None:
        path = self._options.checkpoint
        assert path is not None
        checkpoint.require_whole(self._engine.trainer.workload)
        if self._options.resume or self._options.evaluate:
            trained = checkpoint.what_is_trained(self._engine.job, self._runner)
            return checkpoint.read(path, trained=trained, only_model=self._options.evaluate)
        if path.exists():
            raise PlanError(f"checkpoint '{path}' exists already; say --resume to go on with it, or remove it to begin anew")
        checkpoint.require_place(path)
        return None

    def run(self, record: LaunchRecord) -> None:
        """Train until the last epoch, or the target; the record gets epochs and blocks, on every rank."""
        began = time.monotonic()
        first = self._resumed.epoch if self._resumed else self._options.start_epoch
        progress = self._begin(record)
        for epoch in range(first, self._training.epochs):
            if self._training.stop_at_target and record.epochs and self._training.is_reached(record.epochs[-1]):
                break
            self._epoch(epoch, record, progress, began)
            progress = None
        record.measuring_s = time.monotonic() - began
        self._say(outcome(self._training, record.epochs))

    def evaluate(self) -> None:
        """Evaluate what the checkpoint holds, or the weights that a training would start from; rank 0 prints it."""
        if self._resumed is not None:
            checkpoint.load_model(self._resumed, self._runner)
        else:
            self._runner.begin()
        began = time.monotonic()
        found = self._engine.backend.all_gather_object(self._runner.evaluate(), EvaluationSums)
        sums = sum(found[1:], found[0])
        if not sums.count:
            raise PlanError("--evaluate: this workload holds no data out; leave it out, or give a workload that does")
        figures = sums.metrics()
        said = "  ".join(f"{name} {value:.4f}" if name == "loss" else f"{name} {value:.2%}" for name, value in figures.items())
        self._say(f"held out: {said}  ({sums.count} in {time.monotonic() - began:.1f} s)")

    def _begin(self, record: LaunchRecord) -> EpochProgress | None:
        """Restore the checkpoint. Returns the progress in the epoch that was interrupted."""
        if self._resumed is None:
            return None
        resumed, self._resumed = self._resumed, None
        record.epochs = resumed.epochs()
        checkpoint.restore(resumed, self._runner)
        progress = resumed.progress(self._rank)
        self._say(f"resumed at epoch {resumed.epoch + 1}, step {len(progress.losses) + 1} of {self._runner.steps}")
        return progress

    def _epoch(self, epoch: int, record: LaunchRecord, progress: EpochProgress | None, began: float) -> None:
        started = time.monotonic()
        self._printed, self._logged = len(progress.losses) if progress else 0, 0
        keep_every, print_every = self._options.checkpoint_steps, self._options.print_every

        def pause(epoch: int, progress: EpochProgress) -> None:
            done = len(progress.losses)
            if keep_every and done % keep_every == 0:
                self._keep(record, epoch, progress)
            if print_every and done % print_every == 0:
                self._print_progress(record, epoch, progress)

        command = EpochCommand(turn=epoch, epoch=epoch)
        every = [number for number in (keep_every, print_every) if number]
        report = self._runner.run(command, progress=progress, pause=pause, pause_every=every)
        reports = self._engine.backend.all_gather_object(report, EpochReport)
        require_together([each.drift for each in reports])
        done, wall_s = combine(reports, epoch=epoch), time.monotonic() - started
        block = BlockRecord.joined(
            reports[0].block, ranks_of([each.block for each in reports]), started_s=started - began, wall_s=wall_s
        )
        record.epochs.append(done)
        record.blocks.append(block)
        self._say(line(done, epochs=self._training.epochs, unit=record.sample_unit))
        self._keep(record, epoch + 1, EpochProgress())
        if self._events is not None:
            self._events.epoch(done, block, steps_written=self._logged)

    def _print_progress(self, record: LaunchRecord, epoch: int, progress: EpochProgress) -> None:
        """Print how the steps went since the last line, over all ranks, and write their losses for TensorBoard."""
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
        if self._events is not None:
            self._events.losses(losses, first=epoch * self._runner.steps + self._printed)
            self._logged = done
        self._printed = done

    def _keep(self, record: LaunchRecord, epoch: int, progress: EpochProgress) -> None:
        """Write the checkpoint, such as ``kept.pt``, and beside it the best epoch so far, ``kept.best.pt``."""
        path = self._options.checkpoint
        if path is None:
            return
        found = checkpoint.capture(self._engine.job, self._runner, epoch=epoch, progress=progress, finished=record.epochs)
        if self._rank == 0:
            found.write(path)
            if not progress.losses and is_best(record.epochs):
                found.write(path.with_suffix(f".best{path.suffix}"))


def is_best(epochs: Sequence[EpochRecord]) -> bool:
    """Whether the last epoch has the highest held-out accuracy of all so far, the first of equals."""
    found = [epoch.figures().get("held_out_top1") for epoch in epochs]
    known = [one for one in found if one is not None]
    return bool(known) and found[-1] is not None and all(found[-1] > before for before in known[:-1])


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
