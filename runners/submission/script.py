"""The batch script of a comparison, and its submission."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from measurement.errors import PlanError
from measurement.files import write_whole
from runners.hosts.batch_jobs import JOB_SCRIPT, SUBMITTED
from runners.submission.job_request import STOPS_BEFORE_S, JobRequest
from runners.submission.schedulers import SCHEDULERS, Scheduler, options_of


def script_of(request: JobRequest, plan: Path, *, name: str, folder: Path, arguments: Sequence[str]) -> str:
    """Return the script. It becomes ``ringside compare``, which the signal before the limit reaches; submitted again it goes on.

    ``arguments``: of ``ringside compare`` besides plan and folder.
    """
    system = SCHEDULERS[request.scheduler]
    lines = [f"{system.mark} {option}" for option in options_of(request, name=name, folder=folder)]
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
        write_whole(folder / JOB_SCRIPT, script)
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
        raise PlanError(f"'{folder}' holds no {JOB_SCRIPT}; give the folder that 'ringside submit PLAN -o FOLDER' wrote")
    job_id = system.submitted(folder / JOB_SCRIPT)
    with (folder / SUBMITTED).open("a", encoding="utf-8") as file:
        file.write(f"{job_id}\n")
    return job_id


def scheduler_of(folder: Path) -> Scheduler | None:
    """Return the batch system of the script that a folder holds; None where it holds none."""
    if not (folder / JOB_SCRIPT).is_file():
        return None
    text = (folder / JOB_SCRIPT).read_text(encoding="utf-8")
    return next((system for system in SCHEDULERS.values() if f"\n{system.mark} " in text), None)


def jobs_of(folder: Path) -> list[str]:
    """Return the numbers of the jobs that were submitted into a folder, the first one first."""
    path = folder / SUBMITTED
    return path.read_text(encoding="utf-8").split() if path.is_file() else []
