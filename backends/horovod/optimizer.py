"""A model and its optimizer under Horovod, and what ``hvd.DistributedOptimizer`` does not take over from an optimizer by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from backends.base import Prepared
from backends.remade_optimizer import (
    STATE_HOOKS,
    STEP_HOOKS,
    require_no_hooks,
    require_remade,
    share_attributes,
    share_hooks,
    without_constructor,
)
from measurement.errors import PlanError

NEVER = 2**30
"""Backward passes before an exchange, for steps that shall have none."""


class HorovodPrepared(Prepared):
    """Horovod counts the backward passes itself, and exchanges what is left in ``step``."""

    def __init__(self, bare: nn.Module, wrapped: Optimizer, *, micro_steps: int, op: str) -> None:
        super().__init__(bare, wrapped)
        self._wrapped: Any = wrapped
        self._micro_steps, self._op = micro_steps, op

    def zero_grad(self) -> None:
        """As ``DistributedOptimizer.zero_grad`` (0.28.1), by that of the workload's class, but without its check.

        It refuses while gradients are exchanged, and takes what steps without exchange leave in its table for an exchange.
        """
        super(type(self._wrapped), self._wrapped).zero_grad()

    @contextmanager
    def local_only(self) -> Iterator[None]:
        """The gradient hooks run, no exchange is begun and ``step()`` waits for none."""
        self._wrapped.set_backward_passes_per_step(NEVER)
        try:
            with super().local_only(), self._wrapped.skip_synchronize():
                yield
        finally:
            self._wrapped.set_backward_passes_per_step(self._micro_steps)

    def step(self) -> None:
        """Wait for the exchange that began in the backward pass, then step; Horovod's optimizer does both."""
        self.optimizer.step()

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """``synchronize()``, and ``skip_synchronize()`` around the step, as Horovod's documentation has it for clipping."""
        if self._op == "Adasum":
            raise PlanError(
                "op 'Adasum' exchanges what each rank's step has changed, so no averaged gradients exist to clip or unscale; "
                "use op 'Average', or leave out max_gradient_norm and precision 'amp-fp16'"
            )
        if self.is_local:
            yield
            return
        self._wrapped.synchronize()
        with self._wrapped.skip_synchronize():
            yield


def require_wrappable(optimizer: Optimizer) -> None:
    """Refuse an optimizer that ``hvd.DistributedOptimizer`` cannot stand for; see ``require_remade``."""
    wrapped = "hvd.DistributedOptimizer"
    require_remade(optimizer, wrapped, lambda groups: type(without_constructor(optimizer))(groups))  # noqa: PLW0108 - fails in there


def carry_over(optimizer: Optimizer, wrapped: Any) -> None:
    """Give Horovod's optimizer what the workload's has besides parameter groups: hooks, state, attributes.

    Horovod 0.28.1 makes a subclass whose ``step`` exchanges gradients and then calls the ``step`` of the workload's class.
    PyTorch has both run the hooks; here the inner one alone does, once for each step and with averaged gradients, as under DDP.

    Raises:
        PlanError: Adasum, and there are step hooks.
    """
    if hasattr(wrapped, "_starting_models"):
        require_no_hooks(
            optimizer,
            STEP_HOOKS,
            reason="Horovod's op 'Adasum' steps each parameter by itself during backward, so that it would run once for each "
            "parameter; use op 'Average', or leave out the hook",
        )
    else:
        _unhook_step(type(wrapped))
    wrapped.state = optimizer.state
    share_attributes(optimizer, wrapped)
    share_hooks(optimizer, wrapped, STEP_HOOKS + STATE_HOOKS)


def _unhook_step(cls: Any) -> None:
    """Take PyTorch's running of hooks from around ``cls.step``; the class is this one optimizer's."""
    exchange_and_step = cls.step.__wrapped__

    def step(self: Any, closure: Any = None) -> Any:
        return exchange_and_step(self, closure)

    step.hooked = True  # type: ignore[attr-defined]
    cls.step = step
