"""Launches without timing: the rehearsal and trials of commands before the others, the trace after
them.

The rehearsal starts every arm on its real hosts, runs a few samples, takes the gate and ends. What
a library refuses then costs seconds, not a launch.
The trial starts each command once, alone, up to the steps that are compared.

The trace has every arm take a few steps under torch's profiler and Horovod's timeline, one arm
after another.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from measurement.errors import LaunchError
from measurement.plans.plan import Plan
from measurement.records.record import LaunchRecord
from measurement.records.results import TRACES_FILE, ResultsFolder, write_result
from measurement.records.trace import ArmTrace, Traces
from reports.wording.formatting import count
from runners.driver.launch import Launch, is_comparable
from runners.hosts.placement import Placement
from runners.planning.arm_specs import ArmSpec
from runners.planning.arms import GATE_SAMPLES, resolve_arms
from runners.planning.workload import WorkloadSetup
from runners.progress import LaunchProgress
from runners.protocol.messages import TraceCommand, TraceReply
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
        failed = [
            ArmTrace(arm=arm.record.arm, error=reason_of(arm.record))
            for arm in launch.arms
            if arm.record.arm not in traces
        ]
        ordered = [traces[arm.name] for arm in arms if arm.name in traces]
        write_result(
            self.folder / "traces" / TRACES_FILE,
            Traces(arms=[*ordered, *failed]).model_dump_json(),
        )

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
