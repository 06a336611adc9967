"""What ``ringside check`` prints: a workload tried out in a process of its own, alone or with a plan's arms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from measurement.plans.plan import Plan
from measurement.plans.plan_file import check_plan
from runners.planning.arm_check import AskedArm
from runners.planning.arms import resolve_arm
from runners.planning.check_process import facts_of, require_sound
from runners.planning.trial_findings import WorkloadFacts


def check_plan_and_print(plan: Plan) -> None:
    """Try a plan's workload out on the CPU, and ask its backends what they make of it. Prints what was found, whatever it is.

    Raises:
        PlanError: something cannot work.
    """
    arms = AskedArm.of(resolve_arm(name, arm, plan) for name, arm in plan.arms.items())
    _check_and_print(plan, arms)


def check_and_print(workload: str, options: dict[str, Any], *, local_batch_size: int, seed: int) -> None:
    """The same of a workload without arms; the arguments are as in a plan."""
    asked = {"workload": workload, "workload_options": options, "local_batch_size": local_batch_size, "seed": seed}
    alone = {"name": "check", "world_size": 2, "baseline": "ddp", "arms": {"ddp": {"backend": "ddp"}}}
    _check_and_print(check_plan({**asked, **alone}, source="command line"), [])
    print("nothing to mend")


def _check_and_print(plan: Plan, arms: Sequence[AskedArm]) -> None:
    facts = facts_of(plan.model_copy(update={"device": "cpu"}), arms)
    if not facts.refused:
        print(plan.workload)
        _print(facts)
    require_sound(facts, plan.workload, max_gradient_norm=plan.max_gradient_norm)


def _print(facts: WorkloadFacts) -> None:
    for name in ("model", "optimizer", "batch", "step", "held out"):
        if name in facts.found:
            print(f"  {name:10} {facts.found[name]}")
    for note in facts.notes:
        print(f"  note       {note}")
