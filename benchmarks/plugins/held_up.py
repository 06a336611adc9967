"""DDP with what holds a GPU up planted, for plans whose answer is known: ``path/to/held_up.py:DelayedDDP`` and ``WaitingDDP``."""

from __future__ import annotations

import time
from typing import Any

import torch
from pydantic import Field
from torch import nn

from backends.base import BuildOptimizer, Prepared
from backends.ddp import DDP, DDPOptions
from benchmarks.plugins.slow import with_options

CYCLES = 10**7


class DelayedOptions(DDPOptions):
    """DDP's options, and how long it is held up."""

    delay_ms: float = Field(default=2.0, gt=0)
    """Of each forward pass: on a GPU in a kernel, else on the core."""


class DelayedDDP(DDP):
    """DDP whose model has a kernel more that computes nothing and takes a known time."""

    Options = DelayedOptions
    options: DelayedOptions

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Prepare as DDP does, and hook the model's forward pass. Collective."""
        prepared = with_options(self, DDPOptions, ["delay_ms"], model, build_optimizer, super().prepare)
        seconds = self.options.delay_ms / 1e3
        on_gpu = next(model.parameters()).is_cuda
        cycles = round(CYCLES * seconds / _sleep_s(CYCLES)) if on_gpu else 0

        def hold_up(*_: Any) -> None:
            if on_gpu:
                torch.cuda._sleep(cycles)
                return
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                pass

        model.register_forward_hook(hold_up)
        return prepared


class WaitingDDP(DDP):
    """DDP whose model has the host wait for its device after each forward pass, as ``loss.item()`` does."""

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Prepare as DDP does, and hook the model's forward pass. Collective."""
        prepared = super().prepare(model, build_optimizer)
        if next(model.parameters()).is_cuda:
            model.register_forward_hook(lambda *_: torch.cuda.synchronize())
        return prepared


def _sleep_s(cycles: int) -> float:
    """How long this GPU sleeps for so many cycles, by its own clock: the shortest of five times."""
    shortest = float("inf")
    for _ in range(5):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        torch.cuda._sleep(cycles)
        after.record()
        torch.cuda.synchronize()
        shortest = min(shortest, before.elapsed_time(after) / 1e3)
    return shortest
