"""The precision of a rank's steps, and gradient clipping; the same for every backend.

Automatic mixed precision as in PyTorch's documentation: forward pass and loss under autocast,
backward outside, for fp16 with a gradient scaler. Gradients are unscaled and clipped after they
were averaged (``Prepared.exchanged``), so all ranks have the same overflow and skip the same step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from backends.base import Prepared
from measurement.distances import arithmetic_of
from measurement.errors import PlanError
from measurement.plans.settings import Precision

DTYPES = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}
INITIAL_SCALE = 2.0**16
"""The initial loss scale of ``torch.amp.GradScaler``."""


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse a precision that the device does not support, with a ``PlanError``."""
    if (
        precision == "amp-bf16"
        and device.type == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        raise PlanError(
            f"precision 'amp-bf16': {torch.cuda.get_device_name(device)} has no bfloat16; use"
            " 'amp-fp16' or 'fp32'"
        )


@dataclass(kw_only=True, eq=False)
class StepPrecision:
    """Precision and clipping of one rank's steps.

    The scaler belongs to one model and one optimizer.
    """

    precision: Precision
    max_gradient_norm: float | None
    device: torch.device

    def __post_init__(self) -> None:
        self.start()

    def start(self, *, initial_scale: float = INITIAL_SCALE) -> None:
        """Make a new scaler with this scale, for the first steps of a training."""
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=initial_scale, enabled=self.precision == "amp-fp16"
        )

    @contextmanager
    def local(self) -> Iterator[None]:
        """A context of steps without exchange.

        Ranks may get different scales in it, so the scale is restored after it.
        """
        before = self.scaler.state_dict()
        try:
            yield
        finally:
            self.scaler.load_state_dict(before)

    def skipped_since(self, scale: float) -> int:
        """The number of steps skipped for overflow since the scaler was at ``scale``: each skip
        lowers the scale.

        Exact unless the scale has grown, as it does after 2000 steps without overflow.
        """
        if not self.scaler.is_enabled():
            return 0
        return max(
            0, round(math.log(self.scaler.get_scale() / scale, self.scaler.get_backoff_factor()))
        )

    @property
    def gradient_error(self) -> float:
        """Relative L2 distance that autocast may cause between two computations of one gradient."""
        return (
            arithmetic_of(str(DTYPES[self.precision])).gradient if self.precision in DTYPES else 0.0
        )

    def forward(self) -> AbstractContextManager[Any]:
        """The context of forward and loss."""
        if self.precision not in DTYPES:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.precision])

    def require_fit(self, prepared: Prepared) -> None:
        """Refuse to clip or unscale before the step of a backend that takes it by itself.

        Raises:
            PlanError: with the setting, and what to do.
        """
        if not prepared.owns_step or not (
            self.scaler.is_enabled() or self.max_gradient_norm is not None
        ):
            return
        setting = (
            "max_gradient_norm" if self.max_gradient_norm is not None else "precision 'amp-fp16'"
        )
        raise PlanError(
            f"{setting}: this backend takes the optimizer step by itself, so that gradients can"
            " be neither clipped nor unscaled before; leave it out, or use the backend's option"
            " for it"
        )

    def backward(self, prepared: Prepared, loss: Tensor) -> None:
        """Run the backward pass, of the scaled loss if there is a scaler."""
        prepared.backward(self.scaler.scale(loss))

    def step(self, prepared: Prepared) -> None:
        """Unscale and clip the gradients, then step. Collective unless local."""
        if self.max_gradient_norm is None and not self.scaler.is_enabled():
            prepared.step()
            return
        with prepared.exchanged():
            self.scaler.unscale_(prepared.optimizer)
            if self.max_gradient_norm is not None:
                nn.utils.clip_grad_norm_(prepared.model.parameters(), self.max_gradient_norm)
            self.scaler.step(prepared.optimizer)
        self.scaler.update()
