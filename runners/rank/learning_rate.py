"""The learning rate of every step of a training; see ``measurement.training.TrainingSettings``. Pure but for setting it."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer

from measurement.training import TrainingSettings


def learning_rate_factor(training: TrainingSettings, *, step: int, steps_per_epoch: int, scale: int) -> float:
    """Return the factor of the workload's learning rate.

    Args:
        training: the rules.
        step: optimizer steps before this one, since the training began.
        steps_per_epoch: of every epoch.
        scale: the global batch over the local batch: ranks × micro-steps.
    """
    target = scale if training.learning_rate_scaling == "linear" else 1
    decay = training.decay_factor ** (step // steps_per_epoch // training.decay_epochs)
    warmup_steps = training.warmup_epochs * steps_per_epoch
    progress = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    return target * (1 / target + (1 - 1 / target) * progress) * decay


class LearningRates:
    """Sets an optimizer's learning rates step by step. The ratio between parameter groups stays."""

    def __init__(self, training: TrainingSettings, optimizer: Optimizer, *, steps_per_epoch: int, scale: int) -> None:
        self._training = training
        self._steps_per_epoch, self._scale = steps_per_epoch, scale
        self._built_with: Sequence[float] = [float(group["lr"]) for group in optimizer.param_groups]

    def set(self, optimizer: Optimizer, *, step: int) -> float:
        """Set the rates of a step on the optimizer that will take it; returns that of the first parameter group."""
        factor = learning_rate_factor(self._training, step=step, steps_per_epoch=self._steps_per_epoch, scale=self._scale)
        for group, rate in zip(optimizer.param_groups, self._built_with, strict=True):
            group["lr"] = rate * factor
        return self._built_with[0] * factor
