"""A workload that computes without a core: its layers sleep, as a process does that waits for an
accelerator.

A lab has more hosts than its machine has cores. Only such a workload lets its exchange grow with
hosts as it does on machines.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from workloads.base import Workload

WIDTH = 448
LAYERS = 4


class _Sleep(torch.autograd.Function):
    """The identity, which takes its time in both directions."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, seconds: float) -> torch.Tensor:
        """Sleep for ``seconds``."""
        ctx.seconds = seconds
        time.sleep(seconds)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Sleep twice as long: a backward pass computes about twice as much as a forward pass."""
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class _Layer(nn.Module):
    """A linear layer that takes ``seconds`` to compute."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear, self._seconds = nn.Linear(WIDTH, WIDTH), seconds

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Compute, asleep."""
        done: torch.Tensor = _Sleep.apply(torch.relu(self.linear(batch)), self._seconds)  # type: ignore[no-untyped-call]
        return done


class AsleepOptions(BaseModel):
    """How long a step sleeps."""

    model_config = ConfigDict(extra="forbid")

    compute_s: float = Field(default=0.12, ge=0)
    """Seconds of forward and backward together."""


class Asleep(Workload):
    """Four layers with 3.2 MB of gradients."""

    Options = AsleepOptions
    options: AsleepOptions

    def build_model(self) -> nn.Module:
        """Build the layers."""
        return nn.Sequential(*(_Layer(self.options.compute_s / 3 / LAYERS) for _ in range(LAYERS)))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build plain SGD."""
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def batches(
        self, *, rank: int, world_size: int, device: torch.device
    ) -> Iterator[torch.Tensor]:
        """Yield random rows."""
        generator = torch.Generator().manual_seed(rank)
        while True:
            yield torch.randn(self.local_batch_size, WIDTH, generator=generator)

    def count_samples(self, batch: torch.Tensor) -> int:
        """Count rows."""
        return len(batch)

    def compute_loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean square of what comes out."""
        loss: torch.Tensor = model(batch).square().mean()
        return loss
