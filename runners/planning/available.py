"""Leaves out the arms that this machine cannot run: ``ringside compare --available``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from measurement.errors import PlanError, UnavailableError
from measurement.plans.plan import Plan
from measurement.plans.sections import Arm
from measurement.records.results import ResultsFolder
from runners.planning.arm_checks import require_executables
from runners.planning.arms import resolve_arm
from runners.planning.plan_reading import DEFAULT

FALLBACK_ARMS = {
    "ddp-mpi": Arm(backend="ddp", transport="mpi", launcher="mpirun"),
    "fsdp2-gloo": Arm(backend="fsdp2", transport="gloo", launcher="torchrun"),
}
"""Where Horovod is missing, the default plan compares DDP over Gloo with the first of these that
can run."""


def arms_to_compare(plan: Plan, folder: ResultsFolder, *, only_available: bool) -> Plan:
    """Return the plan with the arms to compare: those that its folder began with; in a new folder,
    if asked, those that can run.

    Raises:
        PlanError: too few arms are left.
    """
    if plan.are_scripts and only_available:
        raise PlanError(
            "--available is for arms of backends; arms by command all run, or none: leave the flag"
            " out"
        )
    if folder.plan_path.is_file():
        begun = folder.read_plan()
        arms = {
            name: arm
            for name, arm in {**begun.arms, **plan.arms}.items()
            if name not in begun.left_out
        }
        return _with_arms(plan, arms, left_out=begun.left_out) if begun.left_out else plan
    reasons = (
        {name: why_not_here(name, arm, plan) for name, arm in plan.arms.items()}
        if only_available
        else {}
    )
    left_out = {name: reason for name, reason in reasons.items() if reason}
    if not left_out:
        return plan
    arms = {name: arm for name, arm in plan.arms.items() if name not in left_out}
    if len(arms) == 1 and plan.name == DEFAULT:
        others = FALLBACK_ARMS.items()
        arms |= [(name, arm) for name, arm in others if not why_not_here(name, arm, plan)][:1]
    if len(arms) < 2:
        raise PlanError(f"fewer than two arms can run here; {left_out_line(left_out)}")
    return _with_arms(plan, arms, left_out=left_out)


def _with_arms(plan: Plan, arms: Mapping[str, Arm], *, left_out: Mapping[str, str]) -> Plan:
    changes: dict[str, Any] = {
        "arms": dict(arms),
        "baseline": plan.baseline if plan.baseline in arms else next(iter(arms)),
        "left_out": dict(left_out),
    }
    if plan.question not in {*arms, *(arm.backend for arm in arms.values())}:
        changes["question"] = None
    return plan.model_copy(update=changes)


def why_not_here(name: str, arm: Arm, plan: Plan) -> str | None:
    """What an arm needs and this machine lacks; None if nothing. A mistake in the plan is
    raised.
    """
    try:
        setup = resolve_arm(name, arm, plan)
        for module, title in setup.backend.imports().items():
            if arm.python is None and find_spec(module) is None:
                return f"{title} is not installed"
        require_executables([setup])
    except UnavailableError as error:
        return error.lack
    return None


def left_out_line(left_out: Mapping[str, str]) -> str:
    """Return which arms are left out, why, and what to do, in one line."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        by_reason.setdefault(reason, []).append(name)
    reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    return f"left out: {reasons}; 'ringside doctor' says why"
