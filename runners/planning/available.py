"""Leaves out the arms that this machine cannot run: ``ringside compare --available``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from measurement.errors import PlanError, UnavailableError
from measurement.plans.arm import Arm
from measurement.plans.plan import Plan
from measurement.records.results import ResultsFolder
from runners.planning.arm_checks import require_executables
from runners.planning.arms import resolve_arm

FALLBACK_ARMS = {
    "ddp-mpi": Arm(backend="ddp", transport="mpi", launcher="mpirun"),
    "fsdp2-gloo": Arm(backend="fsdp2", transport="gloo", launcher="torchrun"),
}
"""Where Horovod is missing, the default plan compares DDP over Gloo with the first of these that
can run."""


def arms_to_compare(
    plan: Plan, folder: ResultsFolder, *, only_available: bool, has_next: bool
) -> Plan:
    """Return the plan with the arms to compare: those that its folder began with; in a new folder,
    if asked, those that can run.

    ``has_next``: where one arm is left, compare it with one of ``FALLBACK_ARMS``.

    Raises:
        PlanError: too few arms are left.
    """
    if plan.are_scripts:
        if only_available:
            raise PlanError(
                "--available is for arms of backends; arms by command all run, or none: leave the"
                " flag out"
            )
        return plan
    if folder.plan_path.is_file():
        started_plan = folder.read_plan()
        arms = {name: arm for name, arm in plan.arms.items() if name not in started_plan.left_out}
        arms |= {
            name: arm
            for name, arm in started_plan.arms.items()
            if name not in plan.arms and started_plan.left_out
        }
        return (
            _with_arms(plan, arms, left_out=started_plan.left_out)
            if started_plan.left_out
            else plan
        )
    reasons = (
        {name: why_not_here(name, arm, plan) for name, arm in plan.arms.items()}
        if only_available
        else {}
    )
    left_out = {name: reason for name, reason in reasons.items() if reason}
    if not left_out:
        return plan
    arms = {name: arm for name, arm in plan.arms.items() if name not in left_out}
    if len(arms) == 1 and has_next:
        runnable = [
            name for name, arm in FALLBACK_ARMS.items() if not why_not_here(name, arm, plan)
        ]
        arms |= {name: FALLBACK_ARMS[name] for name in runnable[:1]}
    if len(arms) < 2:
        remaining = (
            f"only '{next(iter(arms))}' can run here, with nothing to compare it to"
            if arms
            else "no arm can run here"
        )
        raise PlanError(f"{remaining}; {left_out_line(left_out)}")
    return _with_arms(plan, arms, left_out=left_out)


def _with_arms(plan: Plan, arms: Mapping[str, Arm], *, left_out: Mapping[str, str]) -> Plan:
    question = (
        plan.question if plan.question in {*arms, *(arm.backend for arm in arms.values())} else None
    )
    baseline = plan.baseline if plan.baseline in arms else next(iter(arms))
    changes = {
        "arms": dict(arms),
        "baseline": baseline,
        "question": question,
        "left_out": dict(left_out),
    }
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
