"""The rehearsal of ``ringside check``: a plan is tried on this machine alone."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from measurement.errors import PlanError, about
from measurement.plans.arm import Arm
from measurement.plans.plan import Plan
from runners.driver.rehearsal import UncountedLaunches, reason_of
from runners.hosts.preflight import inspect
from runners.planning.arm_checks import why_not_here
from runners.planning.arms import resolve_arm
from runners.planning.check_process import require_own_work
from runners.planning.workload import require_model, resolve_workload
from runners.planning.workload_check import require_data
from runners.progress import LaunchProgress

WHO = re.compile(r"^ranks? [0-9, ]+: (PlanError: )?")
"""Begins a message. Which rank reported it first may be chance."""
ON_THE_CPU = {"on-the-cpu": Arm(backend="ddp", transport="gloo")}
"""Tries a workload if no arm of the plan can start."""


def rehearse_here(plan: Plan) -> tuple[list[str], bool]:
    """Rehearse a plan on this machine alone. If the plan names hosts, two ranks are tried.

    For an arm that cannot start here the reason is given. If none can, native DDP over Gloo tries
    the workload on the CPU.

    Returns:
        Lines with notes and the outcome of each arm, with the user's code around errors; whether no
        arm failed.

    Raises:
        PlanError: there is no model, its data is missing, or every arm failed with the same error.
    """
    here: dict[str, Any] = {
        "hosts": None,
        "network_interface": None,
        "driver_address": None,
        "points": {},
        "training": None,
    }
    epochs = plan.training.epochs if plan.training else 0
    plan = plan.model_copy(
        update={**here, "world_size": min(plan.world_size, 2) if plan.hosts else plan.world_size}
    )
    workload = resolve_workload(plan.workload, plan.workload_options)
    require_model(workload)
    with about(f"workload '{plan.workload}'"):
        require_data(workload, local_batch_size=plan.local_batch_size, seed=plan.seed)
    plan, outcomes = _plan_for_here(plan)
    # mkdtemp's folder is readable for the user only
    folder = Path(tempfile.mkdtemp(prefix="ringside-rehearsal-"))
    with LaunchProgress(seconds_per_launch=1.0) as progress:
        launches = UncountedLaunches(
            plan=plan, placement=inspect(plan).placement, folder=folder, progress=progress
        )
        launch = launches.rehearse(workload, epochs=epochs)
    failed = {
        name: [reason_of(record), *(record.error.excerpt if record.error else [])]
        for name, record in launch.failed.items()
    }
    causes = {"\n".join([WHO.sub("", lines[0]), *lines[1:]]) for lines in failed.values()}
    logs = f"logs: {folder / 'rehearsal'}"
    if len(failed) == len(plan.arms) and len(causes) == 1:
        raise PlanError(f"{causes.pop()}\n{logs}")
    outcomes |= {
        name: "\n    ".join([f"{launch.failed[name].status}: {lines[0]}", *lines[1:]])
        for name, lines in failed.items()
    }
    lines = [f"note       {note}" for note in launch.notes]
    lines += [f"arm        {name}: {outcome}" for name, outcome in outcomes.items()]
    if failed:
        lines.append(logs)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return lines, not failed


def _plan_for_here(plan: Plan) -> tuple[Plan, dict[str, str]]:
    """The plan with the arms that can start on this machine, and by arm ``ok`` or why it cannot
    start.

    Raises a ``PlanError`` if an arm is refused on any machine, or its own workload cannot run.
    """
    lacks = {name: why_not_here(name, arm, plan) for name, arm in plan.arms.items()}
    outcomes = {name: f"not tried here: {lack}" if lack else "ok" for name, lack in lacks.items()}
    changes: dict[str, Any] = {
        "arms": {name: arm for name, arm in plan.arms.items() if not lacks[name]}
    }
    require_own_work(
        [resolve_arm(name, arm, plan) for name, arm in changes["arms"].items()], host=None
    )
    if not changes["arms"]:
        changes = {"arms": ON_THE_CPU, "device": "cpu", "precision": "fp32"}
    if plan.baseline not in changes["arms"]:
        changes["baseline"] = next(iter(changes["arms"]))
    return plan.model_copy(update=changes), outcomes
