"""A model as libraries wrap it: it hides the inner model's attributes, and every call must go
through its forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

REMEDY = (
    "call model(...) alone, whose forward() may take a switch for what to do: DDP exchanges only"
    " what passes its forward"
)
SHARED_ATTRIBUTES = ("device", "dtype")
"""Attributes that libraries' wrappers have, too."""


class BypassedError(AttributeError):
    """The loss is not computed by calling the model.

    An ``AttributeError``, for code that asks whether there is an attribute.
    """


class WrappedModel(nn.Module):
    """Stands in for ``DistributedDataParallel``; refuses what that does not offer, or would not
    notice.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.calls = 0
        """How often it was called."""
        self._depth = 0

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__["_modules"]:
            return self.__dict__["_modules"][name]
        inner = self.__dict__["_modules"]["module"]
        if name in SHARED_ATTRIBUTES and hasattr(inner, name):
            return getattr(inner, name)
        message = (
            f"compute_loss() uses model.{name}, which the wrapped model of DDP does not have;"
            f" {REMEDY}"
        )
        raise BypassedError(
            f"{message}; what computes no loss is at getattr(model, 'module', model).{name}"
        )

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """The model's."""
        self.calls += 1
        self._depth += 1
        try:
            return self.module(*arguments, **named)
        finally:
            self._depth -= 1

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A context in which trained parts of the model may be called from within ``forward``
        only.
        """
        trained = {name: part for name, part in self.module.named_modules() if _is_trained(part)}
        handles = [
            part.register_forward_pre_hook(self._watcher(name)) for name, part in trained.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _watcher(self, name: str) -> Any:
        def watch(*_: Any) -> None:
            # by a checkpoint, in a backward pass
            is_recomputed = torch._C._current_graph_task_id() != -1
            if not self._depth and not is_recomputed:
                what = f"model.{name}" if name else "the model that build_model() returned"
                raise BypassedError(
                    f"compute_loss() calls {what} outside of the model's own forward(); {REMEDY}"
                )

        return watch


def _is_trained(module: nn.Module) -> bool:
    """Whether calls of it matter and can be seen. Calls of parts of a ``ScriptModule`` cannot."""
    return not isinstance(module, torch.jit.ScriptModule) and any(
        parameter.requires_grad for parameter in module.parameters()
    )
