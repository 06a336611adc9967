"""Launches without timing: the rehearsal and trials of commands before the others, the trace after
them.

The rehearsal starts every arm on its real hosts, runs a few samples, takes the gate and ends. What
a library refuses then costs seconds, not a launch. ``ringside check`` rehearses on this machine
alone.
The trial starts each command once, alone, up to the steps that are compared.

The trace has every arm take a few steps under torch's profiler and Horovod's timeline, one arm
after another.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from measurement.errors import LaunchError, PlanError, about
from measurement.plans.plan import Plan
from measurement.plans.sections import Arm
from measurement.records.record import ArmTrace, LaunchRecord, Traces
from measurement.records.results import TRACES_FILE, ResultsFolder, write_result
from reports.wording.formatting import count
from runners.driver.launch import Launch, is_comparable
from runners.hosts.placement import Placement
from runners.hosts.preflight import inspect
from runners.planning.arm_checks import why_not_here
from runners.planning.arm_specs import ArmSpec
from runners.planning.arms import GATE_SAMPLES, resolve_arm, resolve_arms
from runners.planning.check_process import require_own_work
from runners.planning.workload import WorkloadSetup, require_model, resolve_workload
from runners.planning.workload_check import require_data
from runners.progress import LaunchProgress
from runners.protocol import TraceCommand, TraceReply
from runners.scripts.script_setup import SharedInitialState
from runners.session.arm_run import ArmRun
from runners.session.arm_session import ArmSession
from runners.session.endpoint import DriverEndpoint, open_endpoint
from runners.traces import (
    NCCL_LOG_VARIABLES,
    merge_nccl_choices,
    on_one_clock,
    perfetto_file,
)

SHORT = {
    "minutes": None,
    "rounds": 1,
    "block_steps": 1,
    "warmup_steps": 1,
    "launches": 1,
    "control": False,
    "floor": False,
}
"""Changes of ``measurement``: one block with exchange, one without if the plan has such blocks,
then the gate."""
TRACED_STEPS = 6
GPU_IS_FULL = re.compile("CUDA out of memory|devices are busy or unavailable")
"""What torch says of a card that has no room for another process, or admits one at a time."""
WHO = re.compile(r"^ranks? [0-9, ]+: (PlanError: )?")
"""Begins a message. Which rank reported it first may be chance."""
ON_THE_CPU = {"on-the-cpu": Arm(backend="ddp", transport="gloo")}
"""Tries a workload if no arm of the plan can start."""


@dataclass(frozen=True, kw_only=True)
class UncountedLaunches:
    """Runs launches of a plan that do not count; nothing is left running after one."""

    plan: Plan
    placement: Placement
    folder: Path
    """In which each has a folder of its own. It is removed unless an arm failed or was wrong."""
    progress: LaunchProgress

    def rehearse(
        self, workload: WorkloadSetup, *, on_gpus: bool = False, epochs: int = 0
    ) -> Launch:
        """Rehearse every arm, together or one at a time as the plan measures them.

        ``on_gpus``: see ``short_of``. ``epochs``: of the training for which the workload is tried.
        """
        small = short_of(self.plan, on_gpus=on_gpus)
        arms = list(resolve_arms(small).values())
        return self.run("rehearsal", small, arms, workload=workload, tries=epochs)

    def try_commands(
        self, commands: Sequence[ArmSpec], *, state: SharedInitialState | None
    ) -> Launch:
        """Start each command once, alone, up to its compared steps; ``state``: see ``Launch``."""
        alone = {"mode": "sequential", "control": False}
        plan = self.plan.model_copy(
            update={"measurement": self.plan.measurement.model_copy(update=alone)}
        )

        def report(_: DriverEndpoint, arm: ArmRun) -> None:
            self.progress.say(f"{arm.record.arm} has {count(arm.record.world_size, 'rank')}")

        return self.run("trial", plan, commands, act=report, state=state)

    def trace(self, workload: WorkloadSetup, *, refused: Mapping[str, LaunchRecord]) -> None:
        """Trace every arm except those ``refused``, and write the traces."""
        # Horovod needs a core to write its timeline, on which other arms may be starting
        short = {**SHORT, "mode": "sequential", "local_every": 0}
        plan = self.plan.model_copy(
            update={
                "measurement": self.plan.measurement.model_copy(update=short),
                "training": None,
                "environment": self.plan.environment
                | {"HOROVOD_TIMELINE": "DYNAMIC"}
                | NCCL_LOG_VARIABLES,
            }
        )
        traces: dict[str, ArmTrace] = {}
        files: dict[str, bytes] = {}

        def trace(endpoint: DriverEndpoint, arm: ArmRun) -> None:
            name = arm.session.name
            self.progress.say(f"tracing {name}")
            done = arm.session.exchange(
                TraceCommand(steps=TRACED_STEPS),
                TraceReply,
                timeout_s=3 * plan.measurement.block_timeout_s,
            )
            behind_s = [
                endpoint.supervisors.driver_time(name, 0, rank, 0.0)
                for rank in range(len(done.replies))
            ]
            ranks = on_one_clock(done.replies, behind_s)
            file = f"arm-{name}.json.gz"
            files[file] = perfetto_file(ranks)
            traces[name] = ArmTrace(
                arm=name,
                nccl=merge_nccl_choices([reply.nccl for reply in done.replies]),
                file=file,
                spans=[span for rank in ranks for span in rank.spans],
            )

        arms = list(resolve_arms(plan).values())
        launch = self.run("traces", plan, arms, act=trace, workload=workload, refused=refused)
        for file, content in files.items():
            write_result(self.folder / "traces" / file, content)
        ordered = [
            traces.get(record.arm) or ArmTrace(arm=record.arm, error=reason_of(record))
            for record in (arm.record for arm in launch.arms)
        ]
        write_result(self.folder / "traces" / TRACES_FILE, Traces(arms=ordered).model_dump_json())

    def run(
        self,
        name: str,
        plan: Plan,
        arms: Sequence[ArmSpec],
        *,
        act: Callable[[DriverEndpoint, ArmRun], None] | None = None,
        **fields: Any,
    ) -> Launch:
        """Run one launch; ``name``: of its folder. ``act`` and ``fields``: its other fields."""
        self.progress.start(uncounted=name)
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        with open_endpoint(self.placement, has_store=not plan.are_scripts) as endpoint:
            launch = Launch(
                plan=plan,
                setups=arms,
                number=0,
                folder=ResultsFolder(folder),
                open_session=partial(ArmSession, endpoint=endpoint, is_trial=True),
                progress=self.progress,
                act=partial(act, endpoint) if act else None,
                **fields,
            )
            launch.run()
        if not launch.failed:
            shutil.rmtree(folder, ignore_errors=True)
        return launch


def short_of(plan: Plan, *, on_gpus: bool) -> Plan:
    """The plan of a rehearsal: one short round.

    On CPUs it has few samples and neither control nor floor.

    On GPUs it has all arms and samples, since the memory of a card must hold every arm at once,
    including those that wait.
    """
    measurement = {**SHORT, "local_every": min(plan.measurement.local_every, 1)}
    changes: dict[str, Any] = {"training": None}
    if on_gpus:
        measurement |= {name: getattr(plan.measurement, name) for name in ("control", "floor")}
    else:
        changes["local_batch_size"] = min(plan.local_batch_size, GATE_SAMPLES)
        changes["arms"] = {
            name: arm.model_copy(update={"local_batch_size": None})
            for name, arm in plan.arms.items()
        }
    changes["measurement"] = plan.measurement.model_copy(update=measurement)
    return plan.model_copy(update=changes)


def reason_of(record: LaunchRecord) -> str:
    """The message of a record's error, or its status."""
    return record.error.message if record.error else record.status


def require_something_to_measure(
    plan: Plan, failed: Mapping[str, LaunchRecord], *, folder: Path
) -> None:
    """Refuse to measure if the baseline or every candidate failed in the rehearsal, or a GPU does
    not hold all arms.

    Raises a ``LaunchError``.
    """
    full = [name for name, record in failed.items() if GPU_IS_FULL.search(reason_of(record))]
    if full and plan.measurement.mode != "sequential":
        raise LaunchError(
            "nothing was measured: a GPU does not hold all arms at once, including those that wait,"
            f" by its memory or its compute mode (the rehearsal failed for"
            f" {', '.join(full)}; its logs: {folder}); set"
            " measurement.mode: sequential, which runs one at a time, or a smaller"
            " local_batch_size"
        )
    if is_comparable(plan, failed):
        return
    raise LaunchError(
        "\n".join(
            [
                f"nothing was measured, since the rehearsal failed (its logs: {folder})",
                *(f"arm '{name}': {reason_of(record)}" for name, record in failed.items()),
            ]
        )
    )


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
    epochs = plan.training.epochs if plan.training else 0
    here: dict[str, Any] = {
        "hosts": None,
        "network_interface": None,
        "driver_address": None,
        "points": {},
        "training": None,
        "world_size": min(plan.world_size, 2) if plan.hosts else plan.world_size,
    }
    plan = plan.model_copy(update=here)
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
        name: "\n".join([reason_of(record), *(record.error.excerpt if record.error else [])])
        for name, record in launch.failed.items()
    }
    causes = {WHO.sub("", text) for text in failed.values()}
    logs = f"logs: {folder / 'rehearsal'}"
    if len(failed) == len(plan.arms) and len(causes) == 1:
        raise PlanError(f"{causes.pop()}\n{logs}")
    outcomes |= {
        name: f"{launch.failed[name].status}: {text}".replace("\n", "\n    ")
        for name, text in failed.items()
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
