"""The batch script of a comparison, and its submission."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from measurement.errors import PlanError, quoted
from measurement.files import write_whole
from runners.submission.schedulers import SCHEDULERS, STOPS_BEFORE_S, Scheduler

SCRIPT, JOBS = "submit.sh", "submitted-jobs"
TIME = re.compile(r"[0-9]{1,4}(-[0-9]{1,2}(:[0-9]{1,2}){0,2}|(:[0-9]{1,2}){0,2})")


class JobRequest(BaseModel):
    """What the job asks the batch system for."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

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
    def system(self) -> Scheduler:
        """The batch system."""
        return SCHEDULERS[self.scheduler]

    @property
    def minutes(self) -> float | None:
        """The time limit; None where there is none."""
        return minutes_of(self.time)

    def options(self, *, name: str, folder: Path) -> list[str]:
        """Return the options of the script, quoted.

        Raises:
            PlanError: a value would be read as something else.
        """
        if not TIME.fullmatch(self.time):
            raise PlanError(f"--time {quoted(self.time)} is no time that sbatch takes; give such as 2:00:00 or 1-12:00:00")
        strange = next((one for one in self.others if not one.startswith("-")), None)
        if strange is not None:
            raise PlanError(f"--directive {quoted(strange)}: give an option in one word, such as --directive=--exclusive")
        words = (shlex.quote(one) if one.startswith("--") else one for one in self.others)  # such as -l ngpus=4
        options = [*self.system.options(self, name, folder), *words]
        broken = next((word for word in [*options, *self.prologue] if not word.isprintable()), None)
        if broken is not None:
            raise PlanError(f"{quoted(broken)} cannot stand in a batch script; leave out characters that do not print")
        return options


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


def script_of(request: JobRequest, plan: Path, *, name: str, folder: Path, arguments: Sequence[str]) -> str:
    """Return the script. It becomes ``ringside compare``, which the signal before the limit reaches; submitted again it goes on.

    Args:
        request: of the batch system.
        plan: its file.
        name: of the plan.
        folder: of the results.
        arguments: of ``ringside compare`` besides.
    """
    system = request.system
    lines = [f"{system.mark} {option}" for option in request.options(name=name, folder=folder)]
    command = [sys.executable, "-P", "-m", "runners.cli", "compare", str(plan), "-o", str(folder), *arguments]
    if request.minutes is not None and not system.warns:
        seconds = max(1, round(request.minutes * 60) - STOPS_BEFORE_S)
        command = ["timeout", "--foreground", "--signal=TERM", f"{seconds}s", *command]
    begins = "#!/bin/bash" + (" -l" if request.prologue else "")  # where sites define 'module'
    moves = f"cd {shlex.quote(str(Path.cwd()))} || exit 2"
    return "\n".join([begins, *lines, "", *map(_prologue, request.prologue), moves, f"exec {shlex.join(command)}", ""])


def _prologue(line: str) -> str:
    """A line of the prologue, after which the job goes on only where it worked."""
    told = f"ringside: the prologue's line {line!r} failed, so nothing is measured; try it on a node of the job"
    return f"{line}\n[ $? -eq 0 ] || {{ echo {shlex.quote(told)} >&2; exit 2; }}"


def submit(script: str, folder: Path) -> str:
    """Keep a script in the results folder and submit it; returns the job's number.

    Raises:
        PlanError: the folder cannot be written.
        LaunchError: the batch system does not take it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / SCRIPT, script)
    except OSError as error:
        raise PlanError(f"'{folder}' cannot be written: {error.strerror}; give another folder with -o") from error
    return submit_again(folder)


def submit_again(folder: Path) -> str:
    """Submit the script that a folder holds: the job goes on with what is measured there.

    Raises:
        PlanError: it holds none.
        LaunchError: the batch system does not take it.
    """
    system = scheduler_of(folder)
    if system is None:
        raise PlanError(f"'{folder}' holds no {SCRIPT}; give the folder that 'ringside submit PLAN -o FOLDER' wrote")
    job_id = system.submitted(folder / SCRIPT)
    with (folder / JOBS).open("a", encoding="utf-8") as file:
        file.write(f"{job_id}\n")
    return job_id


def scheduler_of(folder: Path) -> Scheduler | None:
    """Return the batch system of the script that a folder holds; None where it holds none."""
    if not (folder / SCRIPT).is_file():
        return None
    text = (folder / SCRIPT).read_text(encoding="utf-8")
    return next((system for system in SCHEDULERS.values() if f"\n{system.mark} " in text), None)
