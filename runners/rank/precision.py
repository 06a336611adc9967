"""How a rank computes its steps: in which precision, and how large the gradient may be. The same for every backend.

Automatic mixed precision as PyTorch's documentation has it: forward and loss under autocast, backward outside, and for fp16 a
gradient scaler. Scaling is undone, and clipping done, on the averaged gradient, which every backend makes available by
``Backend.exchanged``; so all ranks find the same overflow and skip the same step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from backends import Backend
from measurement.errors import PlanError
from measurement.training import Precision

DTYPES = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}
INITIAL_SCALE = 2.0**16
"""PyTorch's; where a gradient overflows, the first steps are skipped until the scale is low enough."""
GRADIENT_ERRORS = {"fp32": 0.0, "amp-fp16": 2e-3, "amp-bf16": 2e-2}
"""Relative L2 error by which two computations of the same gradient may differ, rounded to 11 (fp16) or 8 (bf16) bits."""


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse what a device cannot do.

    Raises:
        PlanError: with what it can.
    """
    if precision == "amp-bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise PlanError(f"precision 'amp-bf16': {torch.cuda.get_device_name(device)} has no bfloat16; use 'amp-fp16' or 'fp32'")
    if precision != "fp32" and not torch.amp.is_autocast_available(device.type):
        raise PlanError(f"precision '{precision}': this PyTorch has no autocast on {device.type}; use 'fp32'")


class Arithmetic:
    """Precision and clipping of one rank's steps; its scaler belongs to one model and one optimizer."""

    def __init__(self, *, precision: Precision, max_gradient_norm: float | None, device: torch.device) -> None:
        self.precision = precision
        self.max_gradient_norm = max_gradient_norm
        self.device = device
        self.start()

    def start(self, *, initial_scale: float = INITIAL_SCALE) -> None:
        """With a new scaler, for a new model."""
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=initial_scale, enabled=self.precision == "amp-fp16")

    @property
    def gradient_error(self) -> float:
        """See ``GRADIENT_ERRORS``."""
        return GRADIENT_ERRORS[self.precision]

    def forward(self) -> AbstractContextManager[Any]:
        """The context of forward and loss."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.precision])

    def backward(self, loss: Tensor) -> None:
        """The backward pass, of the scaled loss where there is a scaler."""
        self.scaler.scale(loss).backward()

    def step(self, backend: Backend, model: nn.Module, optimizer: Optimizer) -> None:
        """The optimizer's step on gradients that are unscaled and clipped. Collective unless local."""
        if self.max_gradient_norm is None and not self.scaler.is_enabled():
            optimizer.step()
            return
        with backend.exchanged(model, optimizer):
            self.scaler.unscale_(optimizer)
            if self.max_gradient_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), self.max_gradient_norm)
            self.scaler.step(optimizer)
        self.scaler.update()

    @contextmanager
    def unclipped(self) -> Iterator[None]:
        """A context of steps that leave gradients as large as they are."""
        norm, self.max_gradient_norm = self.max_gradient_norm, None
        try:
            yield
        finally:
            self.max_gradient_norm = norm

    def describe(self) -> dict[str, Any]:
        """What is in force."""
        return {"precision": self.precision, "max_gradient_norm": self.max_gradient_norm}
