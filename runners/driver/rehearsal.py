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
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from measurement.errors import LaunchError
from measurement.plans.plan import Plan
from measurement.records.record import LaunchRecord
from measurement.records.results import TRACES_FILE, ResultsFolder, write_result
from measurement.records.trace import ArmTrace, Traces
from runners.driver.launch import Launch
from runners.hosts.placement import Placement
from runners.planning.arm_specs import ArmSpec
from runners.planning.arms import GATE_SAMPLES, resolve_arms
from runners.planning.workload import WorkloadSetup
from runners.progress import LaunchProgress
from runners.protocol.messages import TraceCommand, TraceReply
from runners.scripts.initial_state import SharedInitialState
from runners.session.arm_run import ArmRun
from runners.session.arm_session import ArmSession
from runners.session.endpoint import open_endpoint
from runners.traces.nccl_log import NCCL_LOG_VARIABLES, merge_ranks
from runners.traces.trace_file import on_one_clock, perfetto_file

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
GPU_IS_FULL = "CUDA out of memory"
"""How torch begins its OutOfMemoryError."""
RANK = re.compile(r"^ranks? [0-9, ]+: ")
"""Begins a message. Which rank reported it first may be chance."""


def rehearse(
    plan: Plan,
    workload: WorkloadSetup,
    *,
    placement: Placement,
    folder: Path,
    progress: LaunchProgress,
    on_gpus: bool = False,
    epochs: int = 0,
) -> Launch:
    """Rehearse every arm of a plan, together or one at a time as the plan measures them; nothing is
    left running.

    Returns the launch; ``folder`` has the logs of arms that failed or were wrong. ``on_gpus``: see
    ``short_of``. ``epochs``: of the training for which the workload is tried.
    """
    small = short_of(plan, on_gpus=on_gpus)
    arms = list(resolve_arms(small).values())
    return run_uncounted(
        "rehearsal",
        small,
        arms,
        placement=placement,
        folder=folder,
        progress=progress,
        workload=workload,
        tries=epochs,
    )


def short_of(plan: Plan, *, on_gpus: bool) -> Plan:
    """The plan of a rehearsal: one short round.

    On CPUs it has few samples and neither control nor floor.

    On GPUs it has all arms and samples, since the memory of a card must hold every arm at once,
    including those that wait.
    """
    kept = {"control", "floor"} if on_gpus else set()
    short = {name: value for name, value in SHORT.items() if name not in kept}
    measurement = plan.measurement.model_copy(
        update={**short, "local_every": min(plan.measurement.local_every, 1)}
    )
    samples = plan.local_batch_size if on_gpus else min(plan.local_batch_size, GATE_SAMPLES)
    arms = (
        plan.arms
        if on_gpus
        else {
            name: arm.model_copy(update={"local_batch_size": None})
            for name, arm in plan.arms.items()
        }
    )
    changes = {"local_batch_size": samples, "training": None, "arms": arms}
    return plan.model_copy(update={**changes, "measurement": measurement})


def try_commands(
    plan: Plan,
    commands: Sequence[ArmSpec],
    *,
    placement: Placement,
    folder: Path,
    state: SharedInitialState | None,
    progress: LaunchProgress,
) -> Launch:
    """Start each command once, alone, up to its compared steps, and end it; nothing is left
    running.

    Returns the launch; ``folder`` has the logs if one failed. ``state``: see ``Launch``.
    """
    alone = plan.model_copy(
        update={
            "measurement": plan.measurement.model_copy(
                update={"mode": "sequential", "control": False}
            )
        }
    )

    def report(arm: ArmRun) -> None:
        ranks, seconds = arm.record.world_size, arm.record.start_s or 0.0
        progress.say(
            f"{arm.record.arm} has {ranks} rank{'s' if ranks > 1 else ''}, and took its first steps"
            f" within {seconds:.0f} s"
        )

    return run_uncounted(
        "trial",
        alone,
        commands,
        placement=placement,
        folder=folder,
        progress=progress,
        state=state,
        act=report,
    )


def run_uncounted(
    name: str,
    plan: Plan,
    arms: Sequence[ArmSpec],
    *,
    placement: Placement,
    folder: Path,
    progress: LaunchProgress,
    **fields: Any,
) -> Launch:
    """Run a launch that does not count; ``fields``: its other fields.

    The folder is removed unless an arm failed.
    """
    progress.start(uncounted=name)
    shutil.rmtree(folder, ignore_errors=True)
    with open_endpoint(placement, has_store=not plan.are_scripts) as endpoint:
        open_session = partial(ArmSession, endpoint=endpoint, is_trial=True)
        results = ResultsFolder(folder)
        launch = Launch(
            plan=plan,
            setups=arms,
            number=0,
            folder=results,
            open_session=open_session,
            progress=progress,
            **fields,
        )
        launch.run()
    if not launch.failed:
        shutil.rmtree(folder, ignore_errors=True)
    return launch


def trace_arms(
    plan: Plan,
    workload: WorkloadSetup,
    *,
    placement: Placement,
    folder: Path,
    progress: LaunchProgress,
    refused: Mapping[str, LaunchRecord],
) -> None:
    """Trace every arm of a plan except those ``refused``; ``folder`` has the traces.

    Nothing is left running.
    """
    # Horovod needs a core to write its timeline, on which other arms may be starting
    alone = {"mode": "sequential"}
    short = plan.measurement.model_copy(update={**SHORT, **alone, "local_every": 0})
    environment = plan.environment | {"HOROVOD_TIMELINE": "DYNAMIC"} | NCCL_LOG_VARIABLES
    small = plan.model_copy(
        update={"measurement": short, "training": None, "environment": environment}
    )
    shutil.rmtree(folder, ignore_errors=True)
    progress.start(uncounted="trace")
    traces: dict[str, ArmTrace] = {}

    def trace(arm: ArmRun) -> None:
        name = arm.session.name
        progress.say(f"tracing {name}")
        done = arm.session.exchange(
            TraceCommand(steps=TRACED_STEPS), TraceReply, timeout_s=3 * short.block_timeout_s
        )
        behind_s = [
            endpoint.supervisors.driver_time(name, 0, rank, 0.0)
            for rank in range(len(done.replies))
        ]
        ranks = on_one_clock(done.replies, behind_s)
        file, spans = f"arm-{name}.json.gz", [span for rank in ranks for span in rank.spans]
        write_result(folder / file, perfetto_file(ranks))
        nccl = merge_ranks([reply.nccl for reply in done.replies])
        traces[name] = ArmTrace(arm=name, nccl=nccl, file=file, spans=spans)

    with open_endpoint(placement, has_store=True) as endpoint:
        arms = list(resolve_arms(small).values())
        launch = Launch(
            plan=small,
            setups=arms,
            workload=workload,
            number=0,
            folder=ResultsFolder(folder),
            open_session=partial(ArmSession, endpoint=endpoint),
            progress=progress,
            refused=refused,
            act=trace,
        )
        launch.run()
    failed = {arm.record.arm: arm.record for arm in launch.arms if arm.record.arm not in traces}
    ordered = [traces[arm.name] for arm in arms if arm.name in traces]
    ordered += [ArmTrace(arm=name, error=reason_of(record)) for name, record in failed.items()]
    write_result(folder / TRACES_FILE, Traces(arms=ordered).model_dump_json())
    if not failed:
        shutil.rmtree(folder / "launch-000", ignore_errors=True)


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
    full = [name for name, record in failed.items() if GPU_IS_FULL in reason_of(record)]
    if full and plan.measurement.mode != "sequential":
        raise LaunchError(
            "nothing was measured: GPU memory does not hold all arms at once, including those that"
            f" wait (the rehearsal failed for {', '.join(full)}; its logs: {folder}); set"
            " measurement.mode: sequential, which runs one at a time, or a smaller"
            " local_batch_size"
        )
    candidates = plan.arms.keys() - {plan.baseline}
    if plan.baseline not in failed and (not candidates or candidates - failed.keys()):
        return
    messages = {name: reason_of(record) for name, record in failed.items()}
    causes = {RANK.sub("", message) for message in messages.values()}
    every = len(messages) == len(plan.arms) and len(causes) == 1
    lines = (
        [f"every arm: {next(iter(messages.values()))}"]
        if every
        else [f"arm '{n}': {m}" for n, m in messages.items()]
    )
    raise LaunchError(
        "\n".join(
            [f"nothing was measured, since the rehearsal failed (its logs: {folder})", *lines]
        )
    )
