"""What ``ringside check`` prints: a workload tried out in this process, or that of a plan with the plan's arms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from measurement.errors import PlanError
from measurement.plan import Plan
from runners.planning.arms import ArmSetup, resolve_arm
from runners.planning.check_process import arm_notes, require_sound
from runners.planning.workload import WorkloadSetup, resolve_workload
from runners.planning.workload_check import WorkloadFacts, check_workload
from workloads import Workload


def check_plan_and_print(plan: Plan) -> None:
    """Try a plan's workload out, see ``check_and_print``, and ask its arms what they make of it."""
    arms = {name: resolve_arm(name, arm, plan) for name, arm in plan.arms.items()}
    check_and_print(
        plan.workload,
        plan.workload_options,
        local_batch_size=plan.local_batch_size,
        seed=plan.seed,
        world_size=plan.world_size,
        max_gradient_norm=plan.max_gradient_norm,
        arms=arms.values(),
    )


def check_and_print(
    workload: str,
    options: dict[str, Any],
    *,
    local_batch_size: int,
    seed: int,
    world_size: int = 2,
    max_gradient_norm: float | None = None,
    arms: Iterable[ArmSetup] = (),
) -> None:
    """Try a workload out on the CPU and print what was found, whatever it is. The arguments are as in a plan.

    Raises:
        PlanError: something cannot work.
    """
    setup = resolve_workload(workload, options)
    require_trained(setup)
    facts = check_workload(setup, local_batch_size=local_batch_size, seed=seed, world_size=world_size, device=torch.device("cpu"))
    print(workload)
    _print(facts)
    require_sound(facts, workload, max_gradient_norm=max_gradient_norm)
    for note in arm_notes(facts, arms):
        print(f"  note       {note}")
    print("nothing to mend")


def require_trained(setup: WorkloadSetup) -> None:
    """Refuse a micro-benchmark, which checks each of its results by itself.

    Raises:
        PlanError: it is one.
    """
    if not issubclass(setup.workload, Workload):
        raise PlanError(f"workload '{setup.reference}' is a micro-benchmark, which checks its results in every run; check a model")


def _print(facts: WorkloadFacts) -> None:
    for name in ("model", "optimizer", "batch", "step", "held out"):
        if name in facts.found:
            print(f"  {name:10} {facts.found[name]}")
    for note in facts.notes:
        print(f"  note       {note}")
