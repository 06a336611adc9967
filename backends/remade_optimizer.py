"""Makes an optimizer anew from its parameter groups, as libraries need it that make a subclass, whatever its constructor takes."""

from __future__ import annotations

import inspect
from typing import Any

from torch.optim import Optimizer

from measurement.errors import PlanError


def without_constructor(optimizer: Optimizer) -> Any:
    """An object for libraries that make a subclass of its class and call it with its parameter groups.

    The constructor of the workload's own class is not called again: it may need more than parameter groups, such as a learning
    rate without default or an optimizer to wrap. What it made is given to the new optimizer afterwards
    (``optimizer_hooks.share_attributes``).
    """

    def construct(self: Any, params: Any) -> None:
        Optimizer.__init__(self, params, dict(optimizer.defaults))

    cls: Any = type(type(optimizer).__name__, (type(optimizer),), {"__init__": construct})
    made = object.__new__(cls)
    vars(made)["param_groups"] = optimizer.param_groups
    return made


def require_remade(optimizer: Optimizer, library: str) -> None:
    """Refuse an optimizer that ``without_constructor`` cannot stand for, by trying it.

    Raises:
        PlanError: with its class and the reason.
    """
    try:
        type(without_constructor(optimizer))([dict(group) for group in optimizer.param_groups])
    except Exception as error:
        raise PlanError(unmade(optimizer, library, error)) from error


def unmade(optimizer: Optimizer, library: str, error: Exception) -> str:
    """Why a library cannot make an optimizer like this one."""
    return (
        f"{library} makes the optimizer anew from its parameter groups, which optimizer class '{type(optimizer).__name__}' does "
        f"not allow ({type(error).__name__}: {error}); give its constructor defaults, as torch.optim's have, or leave this arm out"
    )


def constructor_needs(optimizer: Optimizer) -> str | None:
    """Why the class cannot be called with parameter groups alone; None: it can, as far as its signature tells."""
    try:
        inspect.signature(type(optimizer)).bind(optimizer.param_groups)
    except TypeError as error:
        return str(error)
    return None
