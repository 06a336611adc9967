"""What a job asks a batch system for, whichever that is; and whether it fits the plan that it is for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from measurement.errors import PlanError
from measurement.plans.plan import Plan
from measurement.plans.points import world_size_at
from measurement.plans.settings import Section

TIME = re.compile(r"[0-9]{1,4}(-[0-9]{1,2}(:[0-9]{1,2}){0,2}|(:[0-9]{1,2}){0,2})")
STOPS_BEFORE_S = 60
"""Before the time limit: what was measured is kept, and reported."""


class JobRequest(Section):
    """What the job asks the batch system for."""

    scheduler: Literal["slurm", "pbs", "lsf"] = "slurm"
    """The batch system: Slurm, PBS Professional or OpenPBS, or LSF."""
    nodes: int = Field(default=1, ge=1)
    """Nodes of the job."""
    tasks_per_node: int = Field(default=1, ge=1)
    """Ranks on each node."""
    time: str = "1:00:00"
    """Time limit, as sbatch takes it; what was measured by then is kept and reported."""
    partition: str | None = None
    """Slurm's partition, or the queue of PBS and LSF."""
    account: str | None = None
    """The account, or LSF's project, that pays."""
    qos: str | None = None
    """Slurm's quality of service."""
    constraint: str | None = None
    """Features that Slurm's nodes must have."""
    cpus_per_task: int | None = Field(default=None, ge=1)
    """Cores for each rank."""
    gpus_per_node: int | None = Field(default=None, ge=1)
    """GPUs on each node."""
    prologue: tuple[str, ...] = ()
    """Run a line of bash first, such as --prologue 'module load cuda'; may be repeated. Ranks get the environment after it."""
    others: tuple[str, ...] = ()
    """Pass a further option to the batch system, such as --directive=--exclusive; may be repeated."""

    @property
    def minutes(self) -> float | None:
        """The time limit; None where there is none."""
        return minutes_of(self.time)


def minutes_of(time: str) -> float | None:
    """A limit as sbatch takes it, in minutes; None where there is no limit (0)."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60 or None


def require_fit(plan: Plan, request: JobRequest, *, flags: tuple[str, str] = ("--ntasks-per-node", "--gpus-per-node")) -> None:
    """Refuse a job that is too small for the plan's largest world size, or larger than it, with a ``PlanError``.

    ``flags``: by which ranks and GPUs of each node are asked for.
    """
    ranks = most_ranks(plan)
    nodes, tasks = request.nodes, request.tasks_per_node
    needed = -(-ranks // nodes)
    of = f"world_size {ranks}" + (" (of the largest point)" if plan.points else "")
    asked = f"{nodes} nodes with {tasks} tasks each" if nodes > 1 else f"one node with {tasks} tasks"
    if ranks > nodes * tasks:
        raise PlanError(f"{of} does not fit into {asked}; give {flags[0]} {needed}, or more --nodes")
    fewest = -(-ranks // tasks)
    if fewest < nodes or needed < tasks:
        raise PlanError(
            f"{of} needs {ranks} tasks, and {asked} are asked for: the others would be idle; give --nodes {fewest} "
            f"{flags[0]} {-(-ranks // fewest)}, or a plan of world_size {nodes * tasks}"
        )
    gpus = request.gpus_per_node
    if gpus is not None and gpus < tasks and plan.device != "cpu":
        raise PlanError(
            f"{of} puts {tasks} ranks on each node, and {flags[1]} {gpus} has one for {gpus} of them; give {flags[1]} {tasks}, "
            "fewer ranks on more --nodes, or device: cpu"
        )


def require_hosts(plan: Plan, hosts: object, *, nodes: int) -> None:
    """Refuse points that would run on the first node alone, with a ``PlanError``. ``hosts``: as the plan's file has them."""
    without = next((name for name, point in plan.points.items() if not hosts and not point.hosts), None)
    if nodes > 1 and without is not None:
        raise PlanError(
            f"point '{without}' names no hosts, so it would run on the first of {nodes} nodes alone; write 'hosts: slurm' in the "
            "plan, or give --nodes 1"
        )


def time_warnings(plan: Plan, request: JobRequest) -> Iterator[str]:
    """That the time limit ends the job before the plan is measured, in one line.

    Raises:
        PlanError: it ends before the first launch is measured.
    """
    measurement = plan.measurement
    if measurement.rounds is not None or measurement.steps_per_launch is not None or plan.training is not None:
        return
    given, each = request.minutes, (measurement.expected_launch_s + STOPS_BEFORE_S) / 60
    smaller = "measurement.seconds_per_launch" if measurement.minutes is None else "measurement.minutes"
    if given is not None and given < each:
        raise PlanError(
            f"--time {request.time} is shorter than one launch: {measurement.expected_launch_s:g} s of blocks, and the job hears "
            f"of its limit {STOPS_BEFORE_S} s before; give --time {each + 5:.0f} (minutes) or more, or a smaller {smaller}"
        )
    points = max(len(plan.points), 1)
    launches = points * measurement.expected_launches
    blocks = launches * measurement.expected_launch_s / 60 if measurement.minutes is None else points * measurement.minutes
    whole = max(blocks, (measurement.max_minutes or 0) if measurement.until_decided else 0)
    what = f"blocks alone ({whole:.0f} minutes, {launches} launches)" if measurement.minutes is None else f"{whole:.0f} minutes"
    if given is not None and given < whole:
        yield f"--time {request.time} is shorter than the plan's {what}"


def most_ranks(plan: Plan) -> int:
    """The largest world size of a plan's points, or its own."""
    return max([world_size_at(plan, name) for name in plan.points] or [plan.world_size])
