"""What a job asks a batch system for, whichever that is."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from measurement.plans.settings import Section

TIME = re.compile(r"[0-9]{1,4}(-[0-9]{1,2}(:[0-9]{1,2}){0,2}|(:[0-9]{1,2}){0,2})")


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
