"""The learning rate of every step of a training; see ``measurement.plans.settings.TrainingSettings``. Pure but for setting it."""

from __future__ import annotations

from functools import partial

from torch.optim import Optimizer

from measurement.plans.settings import TrainingSettings

REFERENCE_BATCH = 256
"""Samples for which rates of ``learning_rate_scaling: per-256`` are meant."""


def learning_rate_factor(
    training: TrainingSettings, *, step: int, steps_per_epoch: int, scale: int, global_batch_size: int = REFERENCE_BATCH
) -> float:
    """Return the factor of the workload's learning rate.

    ``step`` counts optimizer steps before this one since the training began; ``scale`` is the global batch over the local one.
    """
    target = {"linear": scale, "per-256": global_batch_size / REFERENCE_BATCH, "none": 1}[training.learning_rate_scaling]
    decay = training.decay_factor ** (step // steps_per_epoch // training.decay_epochs)
    warmup_steps = training.warmup_epochs * steps_per_epoch
    progress = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    return target * (1 / target + (1 - 1 / target) * progress) * decay


class LearningRates:
    """Sets an optimizer's learning rates step by step. The ratio between parameter groups stays.

    With ``beside_schedule`` the workload has a schedule of its own: a rate in force is multiplied by what the rules' factor has
    changed by, and is otherwise left alone. One that sets rates anew each step, as ``LambdaLR`` does, undoes the rules.
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
            learning_rate_factor, training, steps_per_epoch=steps_per_epoch, scale=scale, global_batch_size=global_batch_size
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
