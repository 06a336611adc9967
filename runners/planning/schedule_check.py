"""Finds out after how many steps a workload's schedule ends, by what follows a step alone: nothing is trained for it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from itertools import count
from typing import Any

from torch import nn
from torch.optim import Optimizer

from measurement.users_code import message_of, paragraph, place_of
from runners.planning.trial_findings import Findings
from workloads import Workload
from workloads.optimizers import members_of

MOST_STEPS = 20_000
MOST_SECONDS = 1.0
FEW_STEPS = 1000
"""A schedule that ends within so many cannot be measured, unless fewer are known to be taken."""


class ScheduleEndedError(Exception):
    """What follows a step raised; the cause says what."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


def run_schedule(workload: Workload, model: nn.Module, optimizer: Optimizer, *, first: int, needed: int | None) -> None:
    """Call ``after_step`` and the optimizer's step hooks as so many steps would, from step ``first`` on.

    Model, optimizer and workload must not be used afterwards. ``needed``: steps that will be taken; None: as many as
    ``MOST_STEPS``. No more than ``MOST_SECONDS`` are spent on it.

    Raises:
        ScheduleEndedError: from what was raised.
    """
    hooks = [hook for one in members_of(optimizer) for hook in _step_hooks(one)]
    if not hooks and type(workload).after_step is Workload.after_step:
        return
    ends = time.monotonic() + MOST_SECONDS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of schedulers that see no step of the optimizer
        for step in count(first):
            if step > (needed or MOST_STEPS) or time.monotonic() > ends:
                return
            try:
                for hook in hooks:
                    hook(optimizer, (), {})
                workload.after_step(step, model=model, optimizer=optimizer)
            except Exception as error:
                raise ScheduleEndedError(step) from error


def _step_hooks(optimizer: Optimizer) -> list[Callable[..., Any]]:
    return [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]


def find_end(findings: Findings, workload: Workload, model: nn.Module, optimizer: Optimizer, *, needed: int | None) -> None:
    """Note where the schedule ends: an error if that is too early for any run. The arguments are as in ``run_schedule``."""
    try:
        run_schedule(workload, model, optimizer, first=2, needed=needed)
    except ScheduleEndedError as ended:
        cause = ended.__cause__ or ended
        message = f"the schedule ends after {ended.step - 1} steps: after_step, or a hook of the optimizer, then raises"
        message += f" {message_of(cause)}; let it go on for as many steps as a run takes, such as with a larger total_steps"
        told = paragraph(message, place_of(cause))
        (findings.errors if needed or ended.step <= FEW_STEPS else findings.notes).append(told)
