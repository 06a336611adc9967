"""The nodes of the job that this process runs in: Slurm, PBS, LSF, Grid Engine, OAR, Flux,
operators, dstack or SkyPilot.

A plan takes them by ``hosts: pbs`` and the like. Slurm's are the default, since its steps reach
them; ssh reaches the others'.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from measurement.errors import HostfileError, PlanError
from runners.hosts.hostfile import parse_hosts, read_hostfile
from runners.launchers.base import HostSlots
from runners.launchers.slurm_job import expand_nodes, slurm_job

SLURM, FLUX, LSF, PBS, KUBERNETES, SKYPILOT = (
    "slurm",
    "flux",
    "lsf",
    "pbs",
    "kubernetes",
    "skypilot",
)
NODE_FILES = {
    PBS: "PBS_NODEFILE",
    LSF: "LSB_DJOB_HOSTFILE",
    "sge": "PE_HOSTFILE",
    "oar": "OAR_NODEFILE",
    "dstack": "DSTACK_MPI_HOSTFILE",
    KUBERNETES: "OMPI_MCA_orte_default_hostfile",
}
"""By the word for ``hosts``: the variable that names a file of nodes. The last is what MPI Operator
and Kubeflow Trainer set."""
IN_A_POD = "KUBERNETES_SERVICE_HOST"
"""Set in every pod. Elsewhere, Open MPI's hostfile may be the user's own."""
LSF_PAIRS = "LSB_MCPU_HOSTS"
"""``node1 4 node2 4``; LSF before version 8 has no file."""
SKYPILOT_NODES, SKYPILOT_SLOTS = "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_GPUS_PER_NODE"
"""An address on each line; and the number of GPUs. A node without GPUs takes one rank."""
FLUX_INSTANCE = "FLUX_URI"
JOB_IDS = {
    SLURM: "SLURM_JOB_ID",
    PBS: "PBS_JOBID",
    LSF: "LSB_JOBID",
    "sge": "JOB_ID",
    "oar": "OAR_JOB_ID",
    "dstack": "DSTACK_JOB_ID",
    SKYPILOT: "SKYPILOT_TASK_ID",
    KUBERNETES: "HOSTNAME",
    FLUX: FLUX_INSTANCE,
}
FLUX_TIMEOUT_S = 20.0


def job_system(environment: Mapping[str, str]) -> str | None:
    """Return the word for the batch system whose job this process runs in; None outside of a job.

    Nothing is read or called.
    """
    if slurm_job(environment) is not None:
        return SLURM
    sources = [
        *NODE_FILES.items(),
        (LSF, LSF_PAIRS),
        (SKYPILOT, SKYPILOT_NODES),
        (FLUX, FLUX_INSTANCE),
    ]
    set_words = (word for word, variable in sources if environment.get(variable))
    return next(
        (word for word in set_words if word != KUBERNETES or environment.get(IN_A_POD)), None
    )


def job_id(word: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the ID of the job whose nodes a plan's ``hosts`` names by a word; None if it lists
    hosts.
    """
    return environment.get(JOB_IDS[word]) if word in JOB_IDS else None


def job_hosts(word: str, environment: Mapping[str, str]) -> tuple[HostSlots, ...]:
    """Return the nodes of a batch system's job, with their slots.

    Raises:
        PlanError: this process is in no such job.
        HostfileError: the list of nodes cannot be read.
        LaunchError: Slurm's variables cannot be read.
    """
    job = slurm_job(environment)
    if word == SLURM and job is not None:
        return job.hosts
    file = environment.get(NODE_FILES.get(word, ""))
    if file:
        hosts = read_hostfile(Path(file))
        # mpirun starts its first ranks where it runs, and Kubeflow Trainer lists that pod last
        if word == KUBERNETES:
            pod = environment.get(JOB_IDS[word], "")
            hosts = tuple(sorted(hosts, key=lambda entry: entry.host.partition(".")[0] != pod))
        return hosts
    if word == LSF and environment.get(LSF_PAIRS):
        return parse_hosts(
            re.sub(r"(\S+)\s+(\d+)\s*", r"\1:\2,", environment[LSF_PAIRS]).rstrip(","),
            source=LSF_PAIRS,
        )
    if word == SKYPILOT and environment.get(SKYPILOT_NODES):
        slots = environment.get(SKYPILOT_SLOTS, "0")
        entries = [
            f"{address}:{slots}" if slots != "0" else address
            for address in environment[SKYPILOT_NODES].split()
        ]
        return parse_hosts(",".join(entries), source=SKYPILOT_NODES)
    if word == FLUX and environment.get(FLUX_INSTANCE):
        return _flux_hosts()
    raise PlanError(
        f"hosts: {word} means the nodes of a job, and this process is in no such job; start one, or"
        " name hosts"
    )


def unused_nodes(environment: Mapping[str, str]) -> str | None:
    """Return a warning if a plan without hosts leaves nodes of its job unused; else None."""
    word = job_system(environment)
    try:
        nodes = len(job_hosts(word, environment)) if word else 0
    except (
        HostfileError
    ):  # variables of a job that is over harm nobody who does not ask for its nodes
        return None
    return (
        f"this job has {nodes} nodes, and all ranks run on this one; to use them: --set"
        f" hosts={word}"
        if nodes > 1
        else None
    )


def _flux_hosts() -> tuple[HostSlots, ...]:
    """With as many slots as a node has cores."""
    names = expand_nodes(_flux("hostlist", "local"))
    counts = re.search(r"(\d+) Nodes?, (\d+) Cores?", _flux("resource", "info"))
    slots = int(counts[2]) // int(counts[1]) if counts else 1
    return parse_hosts(
        ",".join(f"{name}:{max(1, slots)}" for name in dict.fromkeys(names)), source="flux hostlist"
    )


def _flux(*arguments: str) -> str:
    argv = ["flux", *arguments]
    try:
        return subprocess.run(
            argv,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=FLUX_TIMEOUT_S,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise HostfileError(
            f"{FLUX_INSTANCE} is set, but '{' '.join(argv)}' fails: {error}; name hosts"
        ) from error
