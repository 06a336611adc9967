"""Backends whose steps cost a known amount more, for plans whose answer is known.

``path/to/slow.py:SlowDDP`` and ``SlowHorovod`` take a share more of each step, or in some launches
only; ``StallingDDP`` stalls now and then. All spend CPU time or sleep after the optimizer's step,
on each rank alike.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from backends.base import BuildOptimizer, Prepared
from backends.ddp import DDP, DDPOptions
from backends.horovod.backend import Horovod
from backends.horovod.options import HorovodOptions

RUN_ID = "RINGSIDE_RUN"
"""Differs from launch to launch; the same for the ranks of an arm."""


class Slowness(BaseModel):
    """How much a step costs more."""

    model_config = ConfigDict(extra="forbid")

    extra: float = Field(default=0.05, ge=0)
    """The extra computation after each step, as a share of the step's time from its forward pass
    on."""
    share_of_launches: float = Field(default=1.0, ge=0, le=1)
    """In which it is spent; which they are, the run's id decides."""

    def in_this_launch(self) -> float:
        """Return the share to spend in this launch."""
        drawn = int(hashlib.sha256(os.environ.get(RUN_ID, "").encode()).hexdigest()[:8], 16) / 16**8
        return self.extra if drawn < self.share_of_launches else 0.0


def spend_after_steps(model: nn.Module, prepared: Prepared, extra: float) -> None:
    """Have each step be followed by the share ``extra`` of its time.

    The share is spent in CPU time of this thread. A loop over wall time would also count what other
    threads do on its core, such as Gloo's work after a step, and the next forward pass would be
    faster by the same time.
    """
    began = [0.0]
    matrix = torch.rand(64, 64)

    def begin(*_: Any) -> None:
        began[0] = time.perf_counter()

    def spend(*_: Any) -> None:
        until = time.thread_time() + extra * (time.perf_counter() - began[0])
        while time.thread_time() < until:
            matrix @ matrix

    model.register_forward_pre_hook(begin)
    prepared.optimizer.register_step_post_hook(spend)


class Slowed:
    """What the slow backends share: beside one of ours, before it."""

    options: Any
    plain: type[BaseModel]
    """The options of the backend beside it."""

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Prepare as the backend does, and add hooks that spend the extra time. Collective."""
        prepare = super().prepare  # type: ignore[misc]
        prepared = with_options(
            self, self.plain, Slowness.model_fields, model, build_optimizer, prepare
        )
        spend_after_steps(model, prepared, self.options.in_this_launch())
        return prepared


class SlowDDPOptions(DDPOptions, Slowness):
    """DDP's options, and the extra cost."""


class SlowDDP(Slowed, DDP):
    """DDP whose steps take longer by a known share."""

    Options = SlowDDPOptions
    plain = DDPOptions


class SlowHorovodOptions(HorovodOptions, Slowness):
    """Horovod's options, and the extra cost."""


class SlowHorovod(Slowed, Horovod):
    """Horovod whose steps take longer by a known share."""

    Options = SlowHorovodOptions
    plain = HorovodOptions


class Stalls(BaseModel):
    """How often a step stalls, and for how long."""

    model_config = ConfigDict(extra="forbid")

    every: int = Field(default=50, ge=1)
    """Steps from one stall to the next, counted over the whole launch."""
    stall_s: float = Field(default=0.06, ge=0)


class StallingDDPOptions(DDPOptions, Stalls):
    """DDP's options, and its stalls."""


class StallingDDP(DDP):
    """DDP that sleeps after every n-th optimizer step, on its own account."""

    Options = StallingDDPOptions
    options: StallingDDPOptions
    steps = 0

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Prepare as DDP does, and count steps. Collective."""

        def stall(*_: Any) -> None:
            self.steps += 1
            if self.steps % self.options.every == 0:
                time.sleep(self.options.stall_s)

        prepared = with_options(
            self, DDPOptions, Stalls.model_fields, model, build_optimizer, super().prepare
        )
        prepared.optimizer.register_step_post_hook(stall)
        return prepared


def with_options(
    backend: Any,
    plain: type[BaseModel],
    added: Iterable[str],
    model: nn.Module,
    build_optimizer: BuildOptimizer,
    prepare: Any,
) -> Prepared:
    """Call ``prepare`` with the options that the plain backend knows: DDP hands them all to its
    constructor.
    """
    whole = backend.options
    backend.options = plain(**whole.model_dump(exclude=set(added)))
    try:
        prepared: Prepared = prepare(model, build_optimizer)
    finally:
        backend.options = whole
    return prepared
