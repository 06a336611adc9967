"""The rehearsal of ``ringside check``: a plan is tried on this machine alone."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from measurement.errors import PlanError, UnavailableError, about, printable
from measurement.plans.arm import Arm
from measurement.plans.plan import Plan
from runners.driver.launch import Launch
from runners.driver.rehearsal import RANK, reason_of, rehearse
from runners.hosts.preflight import inspect
from runners.planning.arm_checks import require_executables
from runners.planning.arm_specs import ArmSpec
from runners.planning.arms import resolve_arm
from runners.planning.check_process import require_own_work
from runners.planning.workload import require_model, resolve_workload
from runners.planning.workload_check import require_data
from runners.progress import LaunchProgress

FOUND_LATER = "the largest batch that fits in memory, found before timing"
WHO = re.compile(RANK.pattern + "(PlanError: )?")
ON_THE_CPU = {"on-the-cpu": Arm(backend="ddp", transport="gloo")}
"""Tries a workload if no arm of the plan can start."""


class Bar(LaunchProgress):
    """Shows the stages on a terminal only, since the outcome of each arm is printed at the end."""

    def say(self, what: str) -> None:
        self._bar.update(self._task, description=printable(what))


def rehearse_here(plan: Plan) -> tuple[list[str], bool]:
    """Rehearse a plan on this machine alone. If the plan names hosts, two ranks are tried.

    For an arm that cannot start here the reason is given. If none can, native DDP over Gloo tries
    the workload on the CPU.

    Returns:
        Lines with the model, notes and the outcome of each arm, with the user's code around errors;
        whether no arm failed.

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
    folder = Path(tempfile.mkdtemp(prefix="ringside-rehearsal-")) / "rehearsal"
    with Bar(seconds_per_launch=1.0) as progress:
        placement = inspect(plan).placement
        launch = rehearse(
            plan, workload, placement=placement, folder=folder, progress=progress, epochs=epochs
        )
    failed = {
        name: [reason_of(record), *(record.error.excerpt if record.error else [])]
        for name, record in launch.failed.items()
    }
    causes = {"\n".join([WHO.sub("", lines[0]), *lines[1:]]) for lines in failed.values()}
    if len(failed) == len(plan.arms) and len(causes) == 1:
        raise PlanError(f"{causes.pop()}\nlogs: {folder}")
    outcomes |= {
        name: "\n    ".join([f"{launch.failed[name].status}: {lines[0]}", *lines[1:]])
        for name, lines in failed.items()
    }
    if not failed:
        shutil.rmtree(folder.parent, ignore_errors=True)
    notes = [f"note       {note}" for note in launch.notes]
    arms = [f"arm        {name}: {outcome}" for name, outcome in outcomes.items()]
    return [
        *_model_of(launch),
        *notes,
        *arms,
        *([f"logs       {folder}"] if failed else []),
    ], not failed


def _plan_for_here(plan: Plan) -> tuple[Plan, dict[str, str]]:
    """The plan with the arms that can start on this machine, and by arm ``ok`` or why it cannot
    start.

    Raises a ``PlanError`` if an arm is refused on any machine, or its own workload cannot run.
    """
    outcomes = {
        name: f"ok, with {FOUND_LATER}" if arm.fit else "ok" for name, arm in plan.arms.items()
    }
    able = dict[str, ArmSpec]()
    for name, arm in plan.arms.items():
        try:
            setup = resolve_arm(name, arm, plan)
            require_executables([setup])
            able[name] = setup
        except UnavailableError as error:
            outcomes[name] = f"not tried here: {error}"
    require_own_work(able.values(), host=None)
    tried: dict[str, Any] = {"arms": ON_THE_CPU, "device": "cpu", "precision": "fp32"}
    if able:
        tried = {"arms": {name: setup.arm for name, setup in able.items()}}
    baseline = plan.baseline if plan.baseline in able else next(iter(tried["arms"]))
    return plan.model_copy(update=tried | {"baseline": baseline}), outcomes


def _model_of(launch: Launch) -> list[str]:
    """Lines on model and optimizer, if a rank reported them."""
    report = next(
        (
            arm.record.ranks[0]
            for arm in launch.arms
            if arm.record.ranks and arm.record.ranks[0].model
        ),
        None,
    )
    if report is None:
        return []
    parameters, tensors = report.model["parameters"], report.model["gradient_tensors"]
    return [
        f"model      {parameters:,} parameters; gradients of {tensors} tensors",
        f"optimizer  {report.optimizer['class']}",
    ]
