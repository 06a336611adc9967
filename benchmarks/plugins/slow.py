"""A backend whose steps cost a known share more: what a comparison must find. Given to plans as ``path/to/slow.py:SlowDDP``."""

from __future__ import annotations

import time
from typing import Any

import torch
from pydantic import Field
from torch import nn
from torch.optim import Optimizer

from backends.ddp import DDP, DDPOptions


class SlowOptions(DDPOptions):
    """DDP's, and how much is spent on nothing."""

    extra: float = Field(default=0.05, ge=0)
    """Share of each step's own time, from the forward pass on, that is spent again."""


class SlowDDP(DDP):
    """Stock DDP that computes on for ``extra`` of every step after it.

    Counted in this thread's own CPU time: a loop until some wall time has passed also waits out whatever else its core has to
    do, such as what Gloo's threads are left with after a step, and the next forward pass is faster by as much.
    """

    Options = SlowOptions
    options: SlowOptions

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Join as DDP does, then hook the clock on. Collective."""
        began = [0.0]
        matrix = torch.rand(64, 64)

        def begin(*_: Any) -> None:
            began[0] = time.perf_counter()

        def spend(*_: Any) -> None:
            until = time.thread_time() + self.options.extra * (time.perf_counter() - began[0])
            while time.thread_time() < until:
                matrix @ matrix

        model.register_forward_pre_hook(begin)
        optimizer.register_step_post_hook(spend)
        extra, self.options = self.options, DDPOptions(**self.options.model_dump(exclude={"extra"}))  # type: ignore[assignment]
        try:
            return super().prepare(model, optimizer)
        finally:
            self.options = extra
