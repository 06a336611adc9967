"""One rank's training, epoch by epoch: timed steps, then an evaluation.

Rank 0's model is evaluated. Parameters are equal on all ranks but buffers are not: each rank has
the batch-norm statistics of its shard (under DDP since its last forward pass). So with every
backend all ranks take rank 0's buffers for the evaluation, and restore their own after it: the
evaluation does not change the training. It is in float32 even if the training is not.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from measurement.errors import PlanError
from measurement.plans.settings import TrainingSettings
from measurement.records.block import RankSteps
from measurement.step_timer import StepTimer
from runners.planning.workload import steps_per_epoch
from runners.protocol import EpochReport
from runners.rank.trainer import StepOutputs, Trainer, synchronize_ranks
from workloads.base import EvaluationSums, shard_sums
from workloads.optimizers import seed_generators

REFERENCE_BATCH = 256
"""The batch size of the rates of ``learning_rate_scaling: per-256``."""

DECAY_EPOCHS, DECAY = 30, 0.1


class LearningRates:
    """Sets an optimizer's learning rates step by step. The ratio between parameter groups stays.

    With ``beside_schedule`` the workload has its own schedule: the factor then has no decay, and
    each rate is multiplied by the change of the factor. A schedule that sets rates at each step, as
    ``LambdaLR`` does, overrides this.
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
        """``scale``: the global batch over the local one."""
        targets = {"linear": scale, "per-256": global_batch_size / REFERENCE_BATCH, "none": 1.0}
        self._target = targets[training.learning_rate_scaling]
        self._warmup_steps = training.warmup_epochs * steps_per_epoch
        self._decay_steps = math.inf if beside_schedule else steps_per_epoch * DECAY_EPOCHS
        self._beside_schedule = beside_schedule
        self._built_with = [float(group["lr"]) for group in optimizer.param_groups]

    def factor(self, step: int) -> float:
        """Return the factor of the workload's rates, which falls by ``DECAY`` after every
        ``DECAY_EPOCHS`` epochs; ``step`` counts optimizer steps since the training began.
        """
        progress = min(1.0, step / self._warmup_steps) if self._warmup_steps else 1.0
        decay = DECAY ** (step // self._decay_steps)
        return self._target * (1 / self._target + (1 - 1 / self._target) * progress) * decay

    def set(self, optimizer: Optimizer, *, step: int) -> float:
        """Set the rates of a step on the optimizer that will take it; returns that of the first
        parameter group.
        """
        factor = self.factor(step)
        if self._beside_schedule:
            change = factor / (self.factor(step - 1) if step else 1.0)
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * change
            return float(optimizer.param_groups[0]["lr"])
        for group, rate in zip(optimizer.param_groups, self._built_with, strict=True):
            group["lr"] = rate * factor
        return self._built_with[0] * factor


COMPARED_RATES = 32
"""Approximate number of an epoch's learning rates by which ranks are compared."""


class EpochRunner:
    """Runs the epochs of one rank's ``Trainer``."""

    def __init__(
        self, trainer: Trainer, training: TrainingSettings, *, reference: str, scale: int | None
    ) -> None:
        """``scale`` is ``Job.learning_rate_scale``, ``reference`` the workload's name for
        messages.
        """
        world_size = trainer.world.world_size
        self.trainer = trainer
        self._training = training
        self._scale = scale or world_size * trainer.micro_steps
        self.steps = steps_per_epoch(
            trainer.workload,
            reference=reference,
            world_size=world_size,
            micro_steps=trainer.micro_steps,
        )
        self._rates: LearningRates | None = None

    def _begin(self) -> LearningRates:
        """Build the model; later random numbers differ by rank. Collective.

        The schedule scales the workload's learning rates, which the optimizer has here.
        """
        trainer, world_size = self.trainer, self.trainer.world.world_size
        trainer.build()
        seed_generators(trainer.seed + trainer.world.rank)
        return LearningRates(
            self._training,
            trainer.joined.optimizer,
            steps_per_epoch=self.steps,
            scale=self._scale,
            global_batch_size=trainer.workload.local_batch_size * world_size * trainer.micro_steps,
            beside_schedule=trainer.has_after_step,
        )

    def run(self, epoch: int) -> EpochReport:
        """Train one epoch and evaluate.

        The first epoch that this rank trains builds the model. Collective.
        """
        trainer = self.trainer
        if epoch == 0 or self._rates is None:
            self._rates = self._begin()
        batches, outputs = self._batches(epoch), StepOutputs()
        synchronize_ranks(trainer.backend, trainer.device)
        timer, scale = StepTimer(trainer.device), trainer.step_precision.scaler.get_scale()
        learning_rates, samples = [], []
        timer.start()
        for step in range(self.steps):
            learning_rates.append(
                self._rates.set(trainer.joined.optimizer, step=epoch * self.steps + step)
            )
            samples.append(trainer.step(timer, batches=batches, outputs=outputs))
        phases_s, skipped_steps = timer.read().tolist(), trainer.step_precision.skipped_since(scale)
        top1, top5 = outputs.hits() or (None, None)
        synchronize_ranks(trainer.backend, trainer.device)
        began = time.perf_counter()
        sums = self.evaluate()
        steps = RankSteps(
            rank=trainer.world.rank,
            untimed_s=time.perf_counter() - began,
            samples=samples,
            phases_s=phases_s,
            skipped_steps=skipped_steps,
        )
        return EpochReport(
            steps=steps,
            losses=outputs.losses(micro_steps=trainer.micro_steps),
            learning_rates=[learning_rates[0], learning_rates[-1]],
            top1=top1,
            top5=top5,
            held_out_loss_sum=sums.loss_sum,
            held_out_top1=sums.top1,
            held_out_top5=sums.top5,
            held_out_count=sums.count,
            drift=trainer.drift(rates=learning_rates[:: max(1, self.steps // COMPARED_RATES)]),
        )

    def _batches(self, epoch: int) -> Iterator[object]:
        """Yield the epoch's batches; raises a ``PlanError`` if there are fewer than the workload
        promised.
        """
        trainer, world = self.trainer, self.trainer.world
        wanted = self.steps * trainer.micro_steps
        batches = trainer.workload.epoch_batches(
            epoch, rank=world.rank, world_size=world.world_size, device=trainer.device
        )
        yield from batches
        raise PlanError(
            f"epoch_batches({epoch}) of workload '{type(trainer.workload).__name__}' gave rank"
            f" {world.rank} fewer than the {wanted} batches needed; batches_per_epoch must say how"
            " many each rank has"
        )

    def evaluate(self) -> EvaluationSums:
        """Evaluate rank 0's model on this rank's share of the held-out data. Collective."""
        trainer, world = self.trainer, self.trainer.world
        model = trainer.evaluation_model()
        with self._rank_0s_buffers(dict(model.named_buffers())):
            return shard_sums(
                trainer.workload,
                model,
                rank=world.rank,
                world_size=world.world_size,
                device=trainer.device,
            )

    @contextmanager
    def _rank_0s_buffers(self, buffers: dict[str, Tensor]) -> Iterator[None]:
        saved = {name: buffer.detach().cpu().clone() for name, buffer in buffers.items()}
        content = io.BytesIO()
        torch.save(saved, content)
        sent = self.trainer.backend.broadcast_bytes(content.getvalue())
        put(torch.load(io.BytesIO(sent), map_location="cpu", weights_only=True), buffers)
        try:
            yield
        finally:
            put(saved, buffers)


@torch.no_grad()
def put(values: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Overwrite each tensor by the value of its name."""
    for name, tensor in tensors.items():
        tensor.copy_(values[name])
