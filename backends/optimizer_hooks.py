"""What a workload's optimizer has of its own (hooks, attributes), for libraries that make another optimizer out of it.

A library that builds its optimizer from the parameter groups drops the rest without a word: a schedule, an average of the weights.
"""

from __future__ import annotations

from torch.optim import Optimizer

from measurement.errors import PlanError

STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
STATE_HOOKS = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
"""Attributes of ``torch.optim.Optimizer`` that hold the hooks, by the number that a handle removes them by."""


def share_hooks(optimizer: Optimizer, other: Optimizer, tables: tuple[str, ...]) -> None:
    """Have ``other`` run ``optimizer``'s hooks, those registered later included; its own are dropped. Not collective."""
    for table in tables:
        setattr(other, table, getattr(optimizer, table))


def share_attributes(optimizer: Optimizer, other: Optimizer) -> None:
    """Give ``other`` the attributes that ``optimizer`` has of its own: what a constructor was told, ``defaults``. Not collective.

    Parameter groups, state, hooks and ``step``, which a learning-rate scheduler replaces to see whether it was called, stay as
    they are.
    """
    kept = {"param_groups", "state", "step", *STEP_HOOKS, *STATE_HOOKS}
    vars(other).update({name: value for name, value in vars(optimizer).items() if name not in kept})


def require_own_methods(optimizer: Optimizer, library: str) -> None:
    """Refuse an optimizer whose methods were replaced on the object: ``library``'s has those of its class.

    Raises:
        PlanError: with the method.
    """
    for name, value in vars(optimizer).items():
        if callable(value) and hasattr(type(optimizer), name) and not hasattr(value, "_wrapped_by_lr_sched"):
            raise PlanError(
                f"the optimizer's method '{name}' was replaced on the object, and {library} would go on with that of its class "
                f"'{type(optimizer).__name__}'; override it in a class of your own, or register a hook"
            )


def require_no_hooks(optimizer: Optimizer, tables: tuple[str, ...], *, reason: str) -> None:
    """Refuse an optimizer that has hooks of these kinds.

    Args:
        optimizer: the workload's.
        tables: of ``STEP_HOOKS`` and ``STATE_HOOKS``.
        reason: why they cannot run as without the library, and what to do.

    Raises:
        PlanError: with the kind of hook.
    """
    for table in tables:
        if getattr(optimizer, table):
            kind = table.removeprefix("_optimizer_").removesuffix("_hooks")
            raise PlanError(f"the optimizer has a {kind} hook; {reason}")
