"""Launches without timing: the rehearsal and trials of commands before the others, the trace after
them.

The rehearsal starts every arm on its real hosts, runs a few samples, takes the gate and ends. What
a library refuses then costs seconds, not a launch. A passed rehearsal is stored under a digest of
the plan, the versions, the machines and the user's sources, so that it is not repeated.

The trial starts each command once, alone, up to the steps that are compared. Its results are
stored, too.

The trace has every arm take a few steps under torch's profiler and Horovod's timeline, one arm
after another.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from install.cache import cache_root
from measurement.errors import LaunchError, PlanError, about, printable
from measurement.plans.plan import Arm, Plan
from measurement.records.record import LaunchRecord
from measurement.records.record_types import Written
from measurement.records.results import TRACES_FILE, ResultsFolder, write_result
from measurement.records.trace import ArmTrace, Traces
from runners.driver.arm_session import ArmRun, ArmSession
from runners.driver.endpoint import open_endpoint
from runners.driver.launch import Launch
from runners.hosts.placement import Placement
from runners.hosts.preflight import inspect
from runners.launchers.trial_facts import TrialFacts
from runners.planning.arm_checks import require_executables
from runners.planning.arm_specs import ArmSpec
from runners.planning.arms import GATE_SAMPLES, resolve_arm, resolve_arms
from runners.planning.check_process import require_own_work
from runners.planning.workload import WorkloadSetup, require_model, resolve_workload
from runners.planning.workload_check import require_data
from runners.progress import LaunchProgress
from runners.protocol.messages import TraceCommand, TraceReply
from runners.scripts.initial_state import SharedInitialState
from runners.traces.nccl_log import VARIABLES, merge_ranks
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
NOT_REHEARSED = {
    *(
        "name",
        "measurement",
        "reports",
        "question",
        "baseline",
        "points",
        "scaling",
        "training",
        "left_out",
    ),
    *("peak_tflops", "trace"),
}
"""Fields of a plan that do not change what a rehearsal shows."""
TRACED_STEPS = 6
GPU_IS_FULL = "CUDA out of memory"
"""How torch begins its OutOfMemoryError."""
FOUND_LATER = "the largest batch that fits in memory, found before timing"
RANK = re.compile(r"^ranks? [0-9, ]+: ")
"""Begins a message. Which rank reported it first may be chance."""
WHO = re.compile(RANK.pattern + "(PlanError: )?")
ON_THE_CPU = {"on-the-cpu": Arm(backend="ddp", transport="gloo")}
"""Tries a workload if no arm of the plan can start."""


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
    environment = plan.environment | {"HOROVOD_TIMELINE": "DYNAMIC"} | VARIABLES
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

    Raises a ``PlanError`` if an arm's own workload cannot run.
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
        except PlanError as error:
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


class Passed(Written):
    """What is stored of a rehearsal, or a trial of commands, that every arm has passed."""

    notes: list[str]
    learned: dict[str, TrialFacts]
    """By the arm's name."""


class PassedRehearsals:
    """Stores which rehearsals were passed, and their results.

    If its folder cannot be written, none is stored.
    """

    def __init__(self, plan: Plan, *, conditions: Mapping[str, object]) -> None:
        """``conditions``: versions, machines, digests of sources and variables that a rehearsal
        depends on.
        """
        measured = plan.measurement
        content = [
            plan.model_dump(mode="json", exclude=NOT_REHEARSED),
            measured.mode,
            measured.control,
            measured.floor,
            dict(conditions),
        ]
        digest = hashlib.sha256(
            json.dumps(content, sort_keys=True, default=str).encode()
        ).hexdigest()[:24]
        self._path = cache_root().parent / "rehearsals" / digest

    def recall(self) -> Passed | None:
        """The results of this rehearsal if it was passed before, else None."""
        with suppress(OSError, ValueError):
            return Passed.model_validate_json(self._path.read_text(encoding="utf-8"))
        return None

    def keep(self, passed: Passed) -> None:
        """Store that it was passed."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(passed.model_dump_json(), encoding="utf-8")

    def forget(self) -> None:
        """Have it repeated next time: an arm that had passed it has failed since."""
        with suppress(OSError):
            self._path.unlink()
