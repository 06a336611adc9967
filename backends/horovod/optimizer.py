"""A model and its optimizer under Horovod: tensors in a form that it accepts, and what its
optimizer would drop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from backends.base import Prepared
from backends.remade_optimizer import (
    STATE_HOOKS,
    STEP_HOOKS,
    require_remade,
    share_attributes,
    share_hooks,
    without_constructor,
)
from measurement.errors import PlanError

NO_EXCHANGE = 2**30
"""Backward passes before an exchange, for steps without exchange."""


class HorovodPrepared(Prepared):
    """Horovod counts the backward passes itself, and exchanges the rest in ``step``."""

    def __init__(self, bare: nn.Module, wrapped: Optimizer, *, micro_steps: int, op: str) -> None:
        super().__init__(bare, wrapped)
        self._wrapped: Any = wrapped
        self._micro_steps, self._op = micro_steps, op

    def zero_grad(self) -> None:
        """Call ``zero_grad`` of the workload's class, without the check in
        ``DistributedOptimizer.zero_grad`` (0.28.1).

        The check refuses while gradients are exchanged, and mistakes the remains of steps without
        exchange for an exchange.
        """
        super(type(self._wrapped), self._wrapped).zero_grad()

    @contextmanager
    def local_only(self) -> Iterator[None]:
        """The gradient hooks run, no exchange begins, and ``step()`` waits for none."""
        self._wrapped.set_backward_passes_per_step(NO_EXCHANGE)
        try:
            with super().local_only(), self._wrapped.skip_synchronize():
                yield
        finally:
            self._wrapped.set_backward_passes_per_step(self._micro_steps)

    def step(self) -> None:
        """Wait for the exchange that began in the backward pass, then step; Horovod's optimizer
        does both.
        """
        self.optimizer.step()

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """``synchronize()``, and ``skip_synchronize()`` around the step, as in Horovod's
        documentation of clipping.
        """
        if self._op == "Adasum":
            raise PlanError(
                "op 'Adasum' exchanges what each rank's step has changed, so no averaged gradients"
                " exist to clip or unscale; use op 'Average', or leave out max_gradient_norm and"
                " precision 'amp-fp16'"
            )
        if self.is_local:
            yield
            return
        self._wrapped.synchronize()
        with self._wrapped.skip_synchronize():
            yield


def require_wrappable(optimizer: Optimizer) -> None:
    """Refuse an optimizer that ``hvd.DistributedOptimizer`` cannot rebuild; see
    ``require_remade``.
    """
    wrapped = "hvd.DistributedOptimizer"
    require_remade(optimizer, wrapped, lambda groups: type(without_constructor(optimizer))(groups))  # noqa: PLW0108 - fails in there


def carry_over(optimizer: Optimizer, wrapped: Any) -> None:
    """Give Horovod's optimizer what the workload's has besides parameter groups: hooks, state,
    attributes.

    Horovod 0.28.1 makes a subclass whose ``step`` exchanges gradients and then calls the ``step``
    of the workload's class. PyTorch would run the hooks in both. Here only the inner one does, once
    for each step and with averaged gradients, as under DDP.
    """
    if not hasattr(wrapped, "_starting_models"):  # Adasum's, which steps within backward
        cls: Any = type(wrapped)
        exchange_and_step = cls.step.__wrapped__

        def step(self: Any, closure: Any = None) -> Any:
            return exchange_and_step(self, closure)

        # without PyTorch's wrapper that runs hooks around it; no other optimizer has this class
        step.hooked = True  # type: ignore[attr-defined]
        cls.step = step
    wrapped.state = optimizer.state
    share_attributes(optimizer, wrapped)
    share_hooks(optimizer, wrapped, STEP_HOOKS + STATE_HOOKS)


REDUCED = frozenset({torch.float64, torch.float32, torch.float16})
"""Dtypes of gradients that Horovod 0.28.1 reduces."""
SENT = REDUCED | {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
"""Dtypes that it broadcasts."""


def broadcast_state(hvd: Any, state: Mapping[str, Tensor]) -> None:
    """``hvd.broadcast_parameters``, of any dtype and layout. Collective.

    Horovod 0.28.1 sends no bool, bfloat16, complex or non-contiguous tensors: the bytes of a
    contiguous copy are sent, and copied back.
    """
    ordered = {name: tensor.detach().contiguous() for name, tensor in state.items()}
    sent = {
        name: tensor if tensor.dtype in SENT else tensor.reshape(-1).view(torch.uint8)
        for name, tensor in ordered.items()
    }
    hvd.broadcast_parameters(sent, root_rank=0)
    for name, tensor in state.items():
        if not tensor.is_contiguous():
            tensor.detach().copy_(ordered[name])


class LayoutKept:
    """A compression of Horovod's for gradients that are not contiguous, such as channels_last.

    Horovod 0.28.1 refuses them ("Tensor is required to be contiguous"), so it gets copies. Layouts
    may differ between ranks.
    """

    def __init__(self, compression: Any) -> None:
        self._compression = compression

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor to send, and the context for ``decompress``."""
        compressed, context = self._compression.compress(tensor)
        return compressed.contiguous(), (context, tensor.stride())

    def decompress(self, tensor: Tensor, context: Any) -> Tensor:
        """The reverse; the context is None for sparse gradients, which were not compressed."""
        if context is None:
            return tensor
        inner, stride = context
        gradient: Tensor = self._compression.decompress(tensor, inner)
        if gradient.stride() == stride:
            return gradient
        return torch.empty_strided(
            gradient.shape, stride, dtype=gradient.dtype, device=gradient.device
        ).copy_(gradient)
