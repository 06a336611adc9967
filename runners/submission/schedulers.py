"""What Slurm, PBS and LSF are asked in a batch script, and the programs by which they are asked."""

from __future__ import annotations

import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from measurement.errors import LaunchError, PlanError, printable, quoted
from runners.hosts.batch_jobs import JOB_LOGS, LSF, PBS, SLURM
from runners.submission.job_request import STOPS_BEFORE_S, TIME, JobRequest

TIMEOUT_S = 60
Options = Callable[[JobRequest, str, Path], Iterator[str]]


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """One batch system. Its name is the word that ``hosts`` in a plan has for its jobs' nodes."""

    name: str
    mark: str
    """How a line with options begins."""
    options: Options
    """Each of the options, quoted as in a shell."""
    submit: tuple[str, ...]
    takes_file: bool = True
    """Else the script is its standard input."""
    listing: tuple[str, ...]
    """Lists the user's jobs, each by its number first."""
    warns: bool = False
    """It sends SIGTERM in time, to the comparison alone; else the script does."""

    def submitted(self, script: Path) -> str:
        """Submit a script; returns the job's number."""
        words = [*self.submit, *([str(script)] if self.takes_file else [])]
        said = call(*words, stdin="" if self.takes_file else script.read_text(encoding="utf-8"))
        found = re.search(r"[0-9]+", said)
        if found is None:
            raise LaunchError(f"{words[0]} gave no job's number, but: {printable(said).strip()}")
        return found[0]

    def queued(self) -> dict[str, str]:
        """Return how the user's jobs stand, by number."""
        said = call(*self.listing, may_fail=self.name == LSF)  # bjobs fails where there is no job
        found = (re.match(r"\s*([0-9]+)\S*\s+(.*)", line) for line in said.splitlines())
        return {line[1]: " ".join(line[2].split()) for line in found if line}


def call(program: str, *arguments: str, stdin: str = "", may_fail: bool = False) -> str:
    """Run a program of the batch system's and return what it says.

    Raises:
        LaunchError: it is not there, or fails.
    """
    if shutil.which(program) is None:
        raise LaunchError(f"there is no {program} here; go to a login node of the cluster, or load its module")
    argv = [program, *arguments]
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{program} did not answer within {TIMEOUT_S} s; is the batch system up?") from None
    if done.returncode and not may_fail:
        said = printable(done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
        raise LaunchError(f"{program}: {said[-1].removeprefix(f'{program}: ').removeprefix('error: ')}")
    return done.stdout


def _slurm(request: JobRequest, name: str, folder: Path) -> Iterator[str]:
    given = {
        "--job-name": f"ringside-{name}",
        "--nodes": request.nodes,
        "--ntasks-per-node": request.tasks_per_node,
        "--time": request.time,
        "--partition": request.partition,
        "--account": request.account,
        "--qos": request.qos,
        "--constraint": request.constraint,
        "--cpus-per-task": request.cpus_per_task,
        "--gpus-per-node": request.gpus_per_node,
        "--output": folder / JOB_LOGS[SLURM].format("%j"),
        "--open-mode": "append",
        "--signal": f"B:TERM@{STOPS_BEFORE_S}",
    }
    return (shlex.quote(f"{option}={value}") for option, value in given.items() if value is not None)


def _pbs(request: JobRequest, name: str, folder: Path) -> Iterator[str]:
    _require_none_of(request, "PBS")
    tasks, seconds = request.tasks_per_node, round((request.minutes or 0) * 60)
    gpus = f":ngpus={request.gpus_per_node}" if request.gpus_per_node else ""
    yield from _given("-N", f"ringside-{name}"[:15])
    yield from _given("-l", f"select={request.nodes}:ncpus={tasks * (request.cpus_per_task or 1)}:mpiprocs={tasks}{gpus}")
    yield from _given("-l", "place=scatter")
    yield from _given("-l", f"walltime={seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}" if seconds else None)
    yield from _given("-q", request.partition)
    yield from _given("-A", request.account)
    yield from _given("-j", "oe")
    yield from _given("-o", folder / JOB_LOGS[PBS])


def _lsf(request: JobRequest, name: str, folder: Path) -> Iterator[str]:
    _require_none_of(request, "LSF")
    cores = f" affinity[core({request.cpus_per_task})]" if request.cpus_per_task else ""
    yield from _given("-J", f"ringside-{name}")
    yield from _given("-n", request.nodes * request.tasks_per_node)
    yield from _given("-R", f"span[ptile={request.tasks_per_node}]{cores}")
    yield from _given("-W", math.ceil(request.minutes) if request.minutes else None)
    yield from _given("-q", request.partition)
    yield from _given("-P", request.account)
    yield from _given("-gpu", f"num={request.gpus_per_node}" if request.gpus_per_node else None)
    yield from _given("-o", folder / JOB_LOGS[LSF].format("%J"))


def _given(option: str, value: object) -> Iterator[str]:
    if value is not None:
        yield shlex.join([option, str(value)])


def _require_none_of(request: JobRequest, system: str) -> None:
    for flag, value in (("--qos", request.qos), ("--constraint", request.constraint)):
        if value is not None:
            raise PlanError(f"{flag} is Slurm's, and {system} has nothing alike; give what your site has for it by --directive")


SCHEDULERS = {
    scheduler.name: scheduler
    for scheduler in (
        Scheduler(
            name=SLURM,
            mark="#SBATCH",
            options=_slurm,
            submit=("sbatch", "--parsable"),
            listing=("squeue", "-h", "--me", "-o", "%i %T %M of %l %R"),
            warns=True,
        ),
        Scheduler(name=PBS, mark="#PBS", options=_pbs, submit=("qsub",), listing=("qstat",)),
        Scheduler(
            name=LSF,
            mark="#BSUB",
            options=_lsf,
            submit=("bsub",),
            takes_file=False,
            listing=("bjobs", "-noheader", "-o", "jobid stat run_time"),
        ),
    )
}


def options_of(request: JobRequest, *, name: str, folder: Path) -> list[str]:
    """Return the options of the script by which a plan of this name measures into a folder, quoted.

    Raises:
        PlanError: a value would be read as something else.
    """
    if not TIME.fullmatch(request.time):
        raise PlanError(f"--time {quoted(request.time)} is no time that sbatch takes; give such as 2:00:00 or 1-12:00:00")
    strange = next((one for one in request.others if not one.startswith("-")), None)
    if strange is not None:
        raise PlanError(f"--directive {quoted(strange)}: give an option in one word, such as --directive=--exclusive")
    words = (shlex.quote(one) if one.startswith("--") else one for one in request.others)  # such as -l ngpus=4
    options = [*SCHEDULERS[request.scheduler].options(request, name, folder), *words]
    broken = next((word for word in [*options, *request.prologue] if not word.isprintable()), None)
    if broken is not None:
        raise PlanError(f"{quoted(broken)} cannot stand in a batch script; leave out characters that do not print")
    return options
