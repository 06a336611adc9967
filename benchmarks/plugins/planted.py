"""Backends with a planted cause, for plans of which it is known why one arm is slower.

``path/to/planted.py:BusyThreadDDP``: a thread of the library's takes a share of the rank's core.
``TwiceDDP``: each gradient is exchanged twice. ``LateRankDDP``: one rank computes longer in its
backward pass.
"""

from __future__ import annotations

import hashlib
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from pydantic import Field
from torch import nn

from backends.base import BuildOptimizer, Prepared
from backends.ddp import DDP, DDPOptions
from benchmarks.plugins.slow import with_options


class BusyThreadOptions(DDPOptions):
    """DDP's options, and what its thread takes."""

    share: float = Field(default=0.15, gt=0, lt=1)
    """Of the time, in slices of a millisecond."""


class BusyThreadDDP(DDP):
    """DDP beside a thread that computes now and then, on the training thread's core where it has
    but one.
    """

    Options = BusyThreadOptions
    options: BusyThreadOptions

    def setup(self, *args: Any, **kwargs: Any) -> Any:
        """Start the thread, once. Collective."""
        joined = super().setup(*args, **kwargs)
        threading.Thread(target=self._compute, args=[self.options.share], daemon=True).start()
        return joined

    @staticmethod
    def _compute(share: float) -> None:
        while True:
            until = time.thread_time() + 1e-3
            while time.thread_time() < until:
                hashlib.pbkdf2_hmac("sha256", b"x", b"y", 300)  # without the interpreter's lock
            time.sleep(1e-3 * (1 - share) / share)

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Prepare as DDP does. Collective."""
        return with_options(self, DDPOptions, ["share"], model, build_optimizer, super().prepare)


class TwiceDDP(DDP):
    """DDP that exchanges each bucket once for nothing before it does so in earnest."""

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Prepare as DDP does, and add the communication hook. Collective."""
        prepared = super().prepare(model, build_optimizer)
        wrapped: Any = prepared.model
        wrapped.register_comm_hook(None, _twice)
        return prepared


def _twice(_, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - DDP refuses annotations that are text
    flat = bucket.buffer()
    first = dist.all_reduce(flat.clone(), async_op=True)
    second = dist.all_reduce(flat.div_(dist.get_world_size()), async_op=True)
    assert first is not None
    assert second is not None
    done: torch.futures.Future[torch.Tensor] = torch.futures.collect_all(
        [first.get_future(), second.get_future()]
    ).then(lambda _: flat)
    return done


class LateRankOptions(DDPOptions):
    """DDP's options, and which rank is late."""

    late_rank: int = Field(default=1, ge=0)
    late_by: float = Field(default=0.05, gt=0)
    """Of a step, in CPU time, in the backward pass."""


class LateRankDDP(DDP):
    """DDP of which one rank computes longer in backward, with exchange or without."""

    Options = LateRankOptions
    options: LateRankOptions

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Prepare as DDP does; the late rank's last layer has a hook on its gradient.
        Collective.
        """
        prepared = with_options(
            self, DDPOptions, ["late_rank", "late_by"], model, build_optimizer, super().prepare
        )
        if dist.get_rank() == self.options.late_rank:
            began = [time.perf_counter()] * 2
            matrix = torch.rand(64, 64)

            def begin(*_: Any) -> None:
                began[:] = [began[1], time.perf_counter()]

            def spend(gradient: torch.Tensor) -> torch.Tensor:
                until = time.thread_time() + self.options.late_by * min(began[1] - began[0], 1.0)
                while time.thread_time() < until:
                    matrix @ matrix
                return gradient

            model.register_forward_pre_hook(begin)
            [p for p in model.parameters() if p.requires_grad][-1].register_hook(spend)
        return prepared
