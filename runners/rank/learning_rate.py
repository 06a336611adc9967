"""The learning rate of every step of a training; see ``measurement.training.Training``. Pure but for setting it."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer

from measurement.training import Training


def learning_rate_factor(training: Training, *, step: int, steps_per_epoch: int, scale: int) -> float:
    """What the workload's learning rate is multiplied by.

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
    """Sets an optimizer's learning rates, step by step; its parameter groups keep their ratio."""

    def __init__(self, training: Training, optimizer: Optimizer, *, steps_per_epoch: int, scale: int) -> None:
        self._training = training
        self._steps_per_epoch, self._scale = steps_per_epoch, scale
        self._built_with: Sequence[float] = [float(group["lr"]) for group in optimizer.param_groups]

    def set(self, optimizer: Optimizer, *, step: int) -> float:
        """Before a step, on the optimizer that takes it; the first group's."""
        factor = learning_rate_factor(self._training, step=step, steps_per_epoch=self._steps_per_epoch, scale=self._scale)
        for group, rate in zip(optimizer.param_groups, self._built_with, strict=True):
            group["lr"] = rate * factor
        return self._built_with[0] * factor
