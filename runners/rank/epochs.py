"""One rank's training, epoch by epoch: timed steps, then an evaluation.

Rank 0's model is evaluated. Parameters are equal on all ranks but buffers are not: each rank has the batch-norm statistics of its
own shard (under DDP since its last forward pass). So for the evaluation every rank takes rank 0's buffers, whatever the backend,
and then its own again: evaluating does not change the training. The evaluation is in float32 even if the training is not.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from measurement.errors import PlanError
from measurement.plans.settings import TrainingSettings
from measurement.probes.step_timer import StepTimer
from measurement.records.record import RankSteps
from runners.planning.workload import steps_per_epoch
from runners.protocol.messages import EpochCommand, EpochReport
from runners.rank.trainer import StepOutputs, Trainer, synchronize_ranks
from workloads.base import EvaluationSums, shard_sums
from workloads.optimizers import seed_generators

REFERENCE_BATCH = 256
"""Samples for which rates of ``learning_rate_scaling: per-256`` are meant."""

DECAY_EPOCHS, DECAY = 30, 0.1


def learning_rate_factor(
    training: TrainingSettings,
    *,
    step: int,
    steps_per_epoch: int,
    scale: int,
    global_batch_size: int = REFERENCE_BATCH,
    decays: bool = True,
) -> float:
    """Return the factor of the workload's learning rate.

    ``step`` counts optimizer steps before this one since the training began; ``scale`` is the global batch over the local one. With
    ``decays`` it falls by ``DECAY`` after every ``DECAY_EPOCHS`` epochs.
    """
    target = {"linear": scale, "per-256": global_batch_size / REFERENCE_BATCH, "none": 1}[training.learning_rate_scaling]
    decay = DECAY ** (step // steps_per_epoch // DECAY_EPOCHS) if decays else 1.0
    warmup_steps = training.warmup_epochs * steps_per_epoch
    progress = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    return target * (1 / target + (1 - 1 / target) * progress) * decay


class LearningRates:
    """Sets an optimizer's learning rates step by step. The ratio between parameter groups stays.

    With ``beside_schedule`` the workload has a schedule of its own: the rules then have no decay, and a rate in force is multiplied
    by what their factor has changed by, and is otherwise left alone.
    One that sets rates anew each step, as ``LambdaLR`` does, undoes the rules.
    """

    def __init__(
        self,
        training: TrainingSettings,
        optimizer: Optimizer,
        *,
        steps_per_epoch: int,
        scale: int,
        global_batch_size: int = REFERENCE_BATCH,
        beside_schedule: bool = False,
    ) -> None:
        self._factor = partial(
            learning_rate_factor,
            training,
            steps_per_epoch=steps_per_epoch,
            scale=scale,
            global_batch_size=global_batch_size,
            decays=not beside_schedule,
        )
        self._beside_schedule = beside_schedule
        self._built_with = [float(group["lr"]) for group in optimizer.param_groups]

    def set(self, optimizer: Optimizer, *, step: int) -> float:
        """Set the rates of a step on the optimizer that will take it; returns that of the first parameter group."""
        factor = self._factor(step=step)
        if self._beside_schedule:
            change = factor / (self._factor(step=step - 1) if step else 1.0)
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * change if change != 1.0 else group["lr"]
            return float(optimizer.param_groups[0]["lr"])
        for group, rate in zip(optimizer.param_groups, self._built_with, strict=True):
            group["lr"] = rate * factor
        return self._built_with[0] * factor


RATES_TOLD = 32
"""Learning rates of an epoch by which ranks are compared, about."""


@dataclass(kw_only=True)
class EpochProgress:
    """One rank's progress in an epoch."""

    samples: list[int] = field(default_factory=list)
    phases_s: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    """One for each step."""
    hits: tuple[int, int] | None = (0, 0)
    """Labels ranked first, and among the first five; None: the workload does not tell."""
    skipped_steps: int = 0
    """Whose gradients overflowed in fp16."""


Pause = Callable[[int, EpochProgress], None]
"""Called with the epoch and this rank's progress in it, between two steps and off the clock."""


class EpochRunner:
    """Runs the epochs of one rank's ``Trainer``."""

    def __init__(self, trainer: Trainer, training: TrainingSettings, *, reference: str, scale: int | None) -> None:
        """``scale`` is ``Job.learning_rate_scale``, ``reference`` the workload's name for messages."""
        world_size = trainer.world.world_size
        self.trainer = trainer
        self._training = training
        self._scale = scale or world_size * trainer.micro_steps
        self.steps = steps_per_epoch(trainer.workload, reference=reference, world_size=world_size, micro_steps=trainer.micro_steps)
        self._rates: LearningRates | None = None

    def begin(self) -> None:
        """Build the model; from then on every rank draws random numbers of its own. Collective.

        The optimizer's learning rates, which are the workload's, are those that the schedule scales.
        """
        self.trainer.build()
        seed_generators(self.trainer.seed + self.trainer.world.rank)
        trainer = self.trainer
        self._rates = LearningRates(
            self._training,
            trainer.joined.optimizer,
            steps_per_epoch=self.steps,
            scale=self._scale,
            global_batch_size=trainer.workload.local_batch_size * trainer.world.world_size * trainer.micro_steps,
            beside_schedule=trainer.has_after_step,
        )

    def run(self, command: EpochCommand, *, pause: Pause | None = None, pause_every: int | None = None) -> EpochReport:
        """Train one epoch, and evaluate. Collective.

        The first epoch, and one that none came before, builds the model. ``pause`` is called off the clock after every
        ``pause_every`` steps, but not after the last.
        """
        epoch = command.epoch
        if epoch == 0 or self._rates is None:
            self.begin()
        progress = EpochProgress()
        batches = self._batches(epoch)
        synchronize_ranks(self.trainer.backend, self.trainer.device)
        stops = range(pause_every, self.steps, pause_every) if pause_every else ()
        for end in [*stops, self.steps]:
            self._run_steps(epoch, end, progress, batches)
            if pause is not None and end < self.steps:
                pause(epoch, progress)
        synchronize_ranks(self.trainer.backend, self.trainer.device)
        return self._report(command, progress)

    def _batches(self, epoch: int) -> Iterator[object]:
        """Yield the epoch's batches; raises a ``PlanError`` where there are fewer than the workload said."""
        trainer, world = self.trainer, self.trainer.world
        wanted = self.steps * trainer.micro_steps
        found = trainer.workload.epoch_batches(epoch, rank=world.rank, world_size=world.world_size, device=trainer.device)
        count = 0
        for batch in found:
            count += 1
            yield batch
        name = type(trainer.workload).__name__
        raise PlanError(
            f"epoch_batches({epoch}) of workload '{name}' gave {count} batches to rank {world.rank}, "
            f"and {wanted} were needed; batches_per_epoch must say how many each rank has"
        )

    def _run_steps(self, epoch: int, end: int, progress: EpochProgress, batches: Iterator[object]) -> None:
        """Train up to step ``end`` of the epoch."""
        trainer, rates = self.trainer, self._rates
        assert rates is not None
        timer, outputs = StepTimer(trainer.device), StepOutputs()
        scale = trainer.step_precision.scaler.get_scale()
        timer.start()
        for step in range(len(progress.losses), end):
            progress.learning_rates.append(rates.set(trainer.joined.optimizer, step=epoch * self.steps + step))
            progress.samples.append(trainer.step(timer, batches=batches, outputs=outputs))
        progress.phases_s += timer.read().tolist()
        progress.losses += outputs.losses(micro_steps=trainer.micro_steps)
        hits = outputs.hits()
        progress.hits = (progress.hits[0] + hits[0], progress.hits[1] + hits[1]) if progress.hits and hits else None
        progress.skipped_steps += trainer.step_precision.skipped_since(scale)

    def _report(self, command: EpochCommand, progress: EpochProgress) -> EpochReport:
        began = time.perf_counter()
        sums = self.evaluate()
        steps = RankSteps(
            rank=self.trainer.world.rank,
            untimed_s=time.perf_counter() - began,
            samples=progress.samples,
            phases_s=progress.phases_s,
            skipped_steps=progress.skipped_steps,
        )
        return EpochReport(
            block=command.record(steps),
            losses=progress.losses,
            learning_rates=[progress.learning_rates[0], progress.learning_rates[-1]],
            top1=progress.hits[0] if progress.hits else None,
            top5=progress.hits[1] if progress.hits else None,
            held_out_loss_sum=sums.loss_sum,
            held_out_top1=sums.top1,
            held_out_top5=sums.top5,
            held_out_count=sums.count,
            drift=self.trainer.drift(rates=progress.learning_rates[:: max(1, self.steps // RATES_TOLD)]),
        )

    def evaluate(self) -> EvaluationSums:
        """Evaluate rank 0's model on this rank's share of the held-out data. Collective."""
        trainer, world = self.trainer, self.trainer.world
        model = trainer.evaluation_model()
        with self._rank_0s_buffers(dict(model.named_buffers())):
            return shard_sums(trainer.workload, model, rank=world.rank, world_size=world.world_size, device=trainer.device)

    @contextmanager
    def _rank_0s_buffers(self, buffers: dict[str, Tensor]) -> Iterator[None]:
        own = {name: buffer.detach().cpu().clone() for name, buffer in buffers.items()}
        content = io.BytesIO()
        torch.save(own, content)
        sent = self.trainer.backend.broadcast_bytes(content.getvalue())
        put(torch.load(io.BytesIO(sent), map_location="cpu", weights_only=True), buffers)
        try:
            yield
        finally:
            put(own, buffers)


@torch.no_grad()
def put(values: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Overwrite each tensor by the value of its name."""
    for name, tensor in tensors.items():
        tensor.copy_(values[name])
