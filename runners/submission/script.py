"""The batch script of a comparison, and its submission to Slurm."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from measurement.errors import LaunchError, PlanError, printable, quoted
from measurement.files import write_whole

SCRIPT, JOBS, LOG = "submit.sh", "slurm-jobs", "slurm-%j.log"
STOPS_BEFORE_S = 60
"""Before the time limit: what was measured is kept, and reported."""
TIMEOUT_S = 60
TIME = re.compile(r"[0-9]{1,4}(-[0-9]{1,2}(:[0-9]{1,2}){0,2}|(:[0-9]{1,2}){0,2})")


class JobRequest(BaseModel):
    """What the job asks Slurm for."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    nodes: int = Field(default=1, ge=1)
    """Nodes of the job."""
    tasks_per_node: int = Field(default=1, ge=1)
    """Ranks on each node."""
    time: str = "1:00:00"
    """Time limit, as sbatch takes it; what was measured by then is kept and reported."""
    partition: str | None = None
    """Slurm's partition."""
    account: str | None = None
    """Slurm's account."""
    cpus_per_task: int | None = Field(default=None, ge=1)
    """Cores for each rank."""
    gpus_per_node: int | None = Field(default=None, ge=1)
    """GPUs on each node."""
    others: tuple[str, ...] = ()
    """Pass a further option to sbatch, such as --sbatch=--exclusive; may be repeated."""

    def options(self, *, name: str, folder: Path) -> list[str]:
        """Return the words of the script's ``#SBATCH`` lines.

        Raises:
            PlanError: a value would be read as something else.
        """
        if not TIME.fullmatch(self.time):
            raise PlanError(f"--time {quoted(self.time)} is no time that sbatch takes; give such as 2:00:00 or 1-12:00:00")
        given = {
            "--job-name": f"ringside-{name}",
            "--nodes": self.nodes,
            "--ntasks-per-node": self.tasks_per_node,
            "--time": self.time,
            "--partition": self.partition,
            "--account": self.account,
            "--cpus-per-task": self.cpus_per_task,
            "--gpus-per-node": self.gpus_per_node,
            "--output": folder / LOG,
            "--open-mode": "append",
            "--signal": f"B:TERM@{STOPS_BEFORE_S}",
        }
        words = [f"{option}={value}" for option, value in given.items() if value is not None]
        strange = next((one for one in self.others if not one.startswith("--")), None)
        if strange is not None:
            raise PlanError(f"--sbatch {quoted(strange)}: give an option of sbatch as one word, such as --sbatch=--exclusive")
        broken = next((word for word in [*words, *self.others] if not word.isprintable()), None)
        if broken is not None:
            raise PlanError(f"{quoted(broken)} cannot stand in a batch script; leave out characters that do not print")
        return [*words, *self.others]


def script_of(request: JobRequest, plan: Path, *, name: str, folder: Path, arguments: Sequence[str]) -> str:
    """Return the script. It becomes ``ringside compare``, which Slurm's signal then reaches; submitted again it goes on. Pure.

    Args:
        request: of Slurm.
        plan: its file.
        name: of the plan.
        folder: of the results.
        arguments: of ``ringside compare`` besides.
    """
    lines = [f"#SBATCH {shlex.quote(option)}" for option in request.options(name=name, folder=folder)]
    command = [sys.executable, "-P", "-m", "runners.cli", "compare", str(plan), "-o", str(folder), *arguments]
    return "\n".join(["#!/bin/bash", *lines, "", f"cd {shlex.quote(str(Path.cwd()))} || exit 2", f"exec {shlex.join(command)}", ""])


def submit(script: str, folder: Path) -> str:
    """Keep a script in the results folder and submit it; returns the job's number.

    Raises:
        PlanError: the folder cannot be written.
        LaunchError: Slurm does not take it.
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
        LaunchError: Slurm does not take it.
    """
    if not (folder / SCRIPT).is_file():
        raise PlanError(f"'{folder}' holds no {SCRIPT}; give the folder that 'ringside submit PLAN -o FOLDER' wrote")
    job_id = slurm("sbatch", "--parsable", str(folder / SCRIPT)).strip().partition(";")[0]
    with (folder / JOBS).open("a", encoding="utf-8") as file:
        file.write(f"{job_id}\n")
    return job_id


def slurm(program: str, *arguments: str) -> str:
    """Run a program of Slurm's and return what it says.

    Raises:
        LaunchError: it is not there, or fails.
    """
    if shutil.which(program) is None:
        raise LaunchError(f"there is no {program} here; go to a login node of the cluster, or load its module")
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{program} did not answer within {TIMEOUT_S} s; is Slurm's controller up? try: sinfo") from None
    if done.returncode:
        said = printable(done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
        raise LaunchError(f"{program}: {said[-1].removeprefix(f'{program}: error: ')}")
    return done.stdout
