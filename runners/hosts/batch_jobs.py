"""The nodes of the job that this process runs in: Slurm, PBS, LSF, Grid Engine, OAR,
operators, dstack or SkyPilot.

A plan takes them by ``hosts: pbs`` and the like. Slurm's are the default, since its steps reach
them; ssh reaches the others'.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from measurement.errors import PlanError, RingsideError
from runners.hosts.hostfile import read_hostfile
from runners.launchers.base import HostSlots
from runners.launchers.slurm import slurm_hosts

SLURM, KUBERNETES, SKYPILOT = "slurm", "kubernetes", "skypilot"
JOBS: Mapping[str, tuple[str, str]] = {
    SLURM: ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"),
    "pbs": ("PBS_JOBID", "PBS_NODEFILE"),
    "lsf": ("LSB_JOBID", "LSB_DJOB_HOSTFILE"),
    "sge": ("JOB_ID", "PE_HOSTFILE"),
    "oar": ("OAR_JOB_ID", "OAR_NODEFILE"),
    "dstack": ("DSTACK_JOB_ID", "DSTACK_MPI_HOSTFILE"),
    KUBERNETES: ("HOSTNAME", "OMPI_MCA_orte_default_hostfile"),
    SKYPILOT: ("SKYPILOT_TASK_ID", "SKYPILOT_NODE_IPS"),
}
"""By the word for ``hosts``: the variables that have the job's ID, and that name a file of nodes;
SkyPilot's has an address on each line. Kubernetes's is what MPI Operator and Kubeflow Trainer
set."""
IN_A_POD = "KUBERNETES_SERVICE_HOST"
"""Set in every pod. Elsewhere, Open MPI's hostfile may be the user's own."""
SKYPILOT_SLOTS = "SKYPILOT_NUM_GPUS_PER_NODE"
"""The number of GPUs. A node without GPUs takes one rank."""


def job_system(environment: Mapping[str, str]) -> str | None:
    """Return the word for the batch system whose job this process runs in; None outside of a job.

    Nothing is read or called.
    """
    set_words = (word for word, (_, nodes) in JOBS.items() if environment.get(nodes))
    return next(
        (word for word in set_words if word != KUBERNETES or environment.get(IN_A_POD)), None
    )


def job_id(word: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the ID of the job whose nodes a plan's ``hosts`` names by a word; None if it lists
    hosts.
    """
    return environment.get(JOBS[word][0]) if word and word in JOBS else None


def job_hosts(word: str, environment: Mapping[str, str]) -> tuple[HostSlots, ...]:
    """Return the nodes of a batch system's job, with their slots.

    Raises:
        PlanError: this process is in no such job.
        HostfileError: the file of nodes cannot be read.
        LaunchError: Slurm's variables cannot be read.
    """
    id_variable, nodes_variable = JOBS[word]
    nodes, slurms = environment.get(nodes_variable), slurm_hosts(environment)
    if not nodes or (word == SLURM and not slurms):
        raise PlanError(
            f"hosts: {word} means the nodes of a job, and this process is in no such job; start"
            " one, or name hosts"
        )
    if word == SLURM:
        return slurms
    if word == SKYPILOT:
        slots = max(1, int(environment.get(SKYPILOT_SLOTS, "0")))
        return tuple(HostSlots(host=address, slots=slots) for address in nodes.split())
    hosts = read_hostfile(Path(nodes))
    # mpirun starts its first ranks where it runs, and Kubeflow Trainer lists that pod last
    if word == KUBERNETES:
        pod = environment.get(id_variable, "")
        hosts = tuple(sorted(hosts, key=lambda entry: entry.host.partition(".")[0] != pod))
    return hosts


def unused_nodes(environment: Mapping[str, str]) -> str | None:
    """Return a warning if a plan without hosts leaves nodes of its job unused; else None."""
    word, nodes = job_system(environment), 0
    with suppress(RingsideError):  # a job that is over harms nobody who does not ask for its nodes
        nodes = len(job_hosts(word, environment)) if word else 0
    if nodes < 2:
        return None
    return (
        f"this job has {nodes} nodes, and all ranks run on this one; to use them: --set"
        f" hosts={word}"
    )
