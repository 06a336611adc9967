"""DDP with what holds a GPU up planted, for plans whose answer is known:
``path/to/held_up.py:DelayedDDP`` and ``WaitingDDP``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from backends.base import BuildOptimizer, Prepared
from backends.ddp import DDP, DDPOptions
from benchmarks.plugins.slow import with_options

CYCLES, BYTES = 10**7, 1 << 25
"""How much is tried, to see how long it takes."""


class DelayedOptions(DDPOptions):
    """DDP's options, and what holds it up for how long."""

    delay_ms: float = Field(default=2.0, gt=0)
    """In each forward pass, by the GPU's own clock; without a GPU the core is kept busy."""
    by: Literal["kernel", "stream", "copy"] = "kernel"
    """A kernel that computes nothing; the same on another stream, which is waited for; a copy from
    pageable memory."""


class DelayedDDP(DDP):
    """DDP whose forward pass takes a known time more."""

    Options = DelayedOptions
    options: DelayedOptions

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Prepare as DDP does, and hook the model's forward pass. Collective."""
        prepared = with_options(
            self, DDPOptions, ["delay_ms", "by"], model, build_optimizer, super().prepare
        )
        seconds, device = self.options.delay_ms / 1e3, next(model.parameters()).device
        hold_up = (
            _on_gpu(self.options.by, seconds, device)
            if device.type == "cuda"
            else partial(_spin, seconds)
        )
        model.register_forward_hook(lambda *_: hold_up())
        return prepared


class WaitingDDP(DDP):
    """DDP whose model has the host wait for its device after each forward pass, as ``loss.item()``
    does.
    """

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Prepare as DDP does, and hook the model's forward pass. Collective."""
        prepared = super().prepare(model, build_optimizer)
        if next(model.parameters()).is_cuda:
            model.register_forward_hook(lambda *_: torch.cuda.synchronize())
        return prepared


def _spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _on_gpu(by: str, seconds: float, device: torch.device) -> Callable[[], object]:
    """What takes this GPU so many seconds."""
    if by == "copy":
        tried = partial(_copy, torch.empty(BYTES, dtype=torch.uint8), device)
        return partial(
            _copy,
            torch.empty(round(BYTES * seconds / _shortest_s(tried)), dtype=torch.uint8),
            device,
        )
    cycles = round(CYCLES * seconds / _shortest_s(partial(torch.cuda._sleep, CYCLES)))
    return (
        partial(_sleep_beside, torch.cuda.Stream(device), cycles)
        if by == "stream"
        else partial(torch.cuda._sleep, cycles)
    )


def _copy(source: torch.Tensor, device: torch.device) -> None:
    source.to(device)


def _sleep_beside(stream: torch.cuda.Stream, cycles: int) -> None:
    own = torch.cuda.current_stream()
    stream.wait_stream(own)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(cycles)
    own.wait_stream(stream)


def _shortest_s(work: Callable[[], object]) -> float:
    """How long this GPU takes for it, by its own clock: the shortest of five times."""
    shortest = float("inf")
    for _ in range(5):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        work()
        after.record()
        torch.cuda.synchronize()
        shortest = min(shortest, before.elapsed_time(after) / 1e3)
    return shortest
