"""For libraries that rebuild the workload's optimizer from its parameter groups, for any
constructor.

Such a library silently drops hooks and attributes, such as a schedule or an average of the weights.
They are shared here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from measurement.errors import PlanError

STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
STATE_HOOKS = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
"""Attributes of ``torch.optim.Optimizer`` that hold the hooks, by the number that a handle removes
them by."""


def share_hooks(optimizer: Optimizer, other: Optimizer, tables: tuple[str, ...]) -> None:
    """Have ``other`` run ``optimizer``'s hooks, also those registered later; its own are dropped.

    Not collective.
    """
    for table in tables:
        setattr(other, table, getattr(optimizer, table))


def share_attributes(optimizer: Optimizer, other: Optimizer) -> None:
    """Copy to ``other`` the attributes of ``optimizer``: arguments of its constructor,
    ``defaults``. Not collective.

    Parameter groups, state and hooks stay, and so does ``step``, which a learning-rate scheduler
    replaces to see its calls.
    """
    excluded = {"param_groups", "state", "step", *STEP_HOOKS, *STATE_HOOKS}
    vars(other).update(
        {name: value for name, value in vars(optimizer).items() if name not in excluded}
    )


def without_constructor(optimizer: Optimizer) -> Any:
    """An object for libraries that make a subclass of its class and call it with its parameter
    groups.

    The constructor of the workload's own class is not called again: it may need more than parameter
    groups, such as a learning rate without default or an optimizer to wrap. ``share_attributes``
    then copies what it made.
    """

    def construct(self: Any, params: Any) -> None:
        Optimizer.__init__(self, params, dict(optimizer.defaults))

    cls: Any = type(type(optimizer).__name__, (type(optimizer),), {"__init__": construct})
    copy = object.__new__(cls)
    vars(copy)["param_groups"] = optimizer.param_groups
    return copy


def require_remade(
    optimizer: Optimizer, library: str, make: Callable[[list[dict[str, Any]]], object]
) -> None:
    """Refuse an optimizer that a library cannot rebuild, by trying it.

    ``make`` makes another optimizer from parameter groups, as the library does.

    Raises:
        PlanError: its class, and why no other can be made.
    """
    try:
        make([dict(group) for group in optimizer.param_groups])
    except Exception as error:
        raise PlanError(
            f"{library} rebuilds the optimizer from its parameter groups, which optimizer class"
            f" '{type(optimizer).__name__}' does not allow ({type(error).__name__}: {error}); give"
            " its constructor defaults, as torch.optim's have, or leave this arm out"
        ) from error
