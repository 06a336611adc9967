"""Hosts as users name them: hostfiles, ``-H`` lists, or by a word the nodes of the job that this
process runs in.

Hostfiles have the forms of Open MPI, Horovod and MPICH, one host per line: ``host1``, ``host1:4``,
``host1 slots=4`` or ``host1 slots=4 max-slots=8``; ``#`` begins a comment, IPv6 addresses are in
brackets (``[fe80::1]:4``). Open MPI's ``max-slots`` is ignored: no host gets more ranks than slots.
A host without a number takes one rank, as in MPICH and in Open MPI's ``-H``; in its hostfiles Open
MPI would give it one per core. Batch systems' files are read, too: a name for each slot (PBS, LSF,
OAR), or ``host1 4 all.q@host1 UNDEFINED`` (Grid Engine). Slots of a host that is named again are
added up, as in Open MPI. All else is refused with the accepted forms, so no text that ssh or a
shell could read as more than a name goes on.

A plan takes the nodes of a job of Slurm, PBS, LSF, Grid Engine, OAR, operators, dstack or SkyPilot
by ``hosts: pbs`` and the like. Slurm's are the default, since its steps reach them; ssh reaches the
others'.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from measurement.errors import HostfileError, PlanError, RingsideError, cut, quoted
from measurement.files import read_text
from runners.launchers.base import HostSlots
from runners.launchers.slurm import slurm_hosts

ACCEPTED = "'host1', 'host1:4', 'host1 slots=4', 'host1 slots=4 max-slots=8' or '[fe80::1]:4'"
_ENTRY = re.compile(
    r"""(?: (?P<name>\w[\w.-]*) | \[(?P<address>[0-9a-f:.]+(?:%\w[\w.-]*)?)\] )
    (?: (?: : | \s+slots\s*=\s* | \s+(?=\S+\s+\S+@) ) (?P<slots>[1-9][0-9]{0,3}) )?
    (?: \s+max[-_]slots\s*=\s*[0-9]+ | \s+\S+@\S+\s+\S+ )?""",
    re.VERBOSE | re.ASCII | re.IGNORECASE,
)


def read_hostfile(path: Path) -> tuple[HostSlots, ...]:
    """Read a hostfile.

    Raises:
        HostfileError: it cannot be read, or a line is not accepted; with file, line number and the
            text seen.
    """
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise HostfileError(
            f"hostfile '{path}' cannot be read: {error}; give a text file with one host per line,"
            " such as hostfiles/two-hosts, or -H host1:4"
        ) from error
    return parse_hostfile(text, source=f"hostfile '{path}'")


def parse_hostfile(text: str, *, source: str) -> tuple[HostSlots, ...]:
    """Read the hosts in a hostfile's text, in its order; at least one.

    ``source``: what a message calls it.

    Raises:
        HostfileError: a line is not accepted.
    """
    return _parse(text.splitlines(), where=f"{source} line", source=source)


def parse_hosts(text: str, *, source: str = "-H") -> tuple[HostSlots, ...]:
    """Read the hosts of a list such as ``host1:4,host2:4``; see ``parse_hostfile``."""
    return _parse(text.split(","), where=f"{source} host", source=source)


def _parse(entries: Iterable[str], *, where: str, source: str) -> tuple[HostSlots, ...]:
    slots = Counter[str]()
    for number, entry in enumerate(entries, start=1):
        text = entry.partition("#")[0].strip()
        parts = _ENTRY.fullmatch(text)
        if parts:
            slots[parts["name"] or parts["address"]] += int(parts["slots"] or 1)
        elif text:
            raise HostfileError(
                f"{where} {number}: {quoted(text)} names no host; accepted: {ACCEPTED}, with at"
                " least one slot (a user belongs into ~/.ssh/config)"
            )
    if not slots:
        raise HostfileError(f"{source} names no host; write one per line, such as 'host1 slots=4'")
    return tuple(HostSlots(host=host, slots=count) for host, count in slots.items())


def place_ranks(hosts: Sequence[HostSlots], world_size: int) -> dict[str, range]:
    """Place the ranks: each host's slots are filled before the next host's, as every launcher does
    by default.

    Returns:
        The ranks of each host, in the hosts' order; an empty range if none are left.

    Raises:
        HostfileError: there are fewer slots than ranks.
    """
    total = sum(entry.slots for entry in hosts)
    if not 1 <= world_size <= total:
        listed = cut(", ".join(map(str, hosts)))
        raise HostfileError(
            f"{world_size} ranks do not fit into {total} slots ({listed}); give the hosts more"
            " slots, name more hosts, or start fewer ranks, at least one"
        )
    placed, first = {}, 0
    for entry in hosts:
        placed[entry.host] = range(first, min(first + entry.slots, world_size))
        first = placed[entry.host].stop
    return placed


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


def unused_nodes(environment: Mapping[str, str]) -> list[str]:
    """Return a warning if a plan without hosts leaves nodes of its job unused."""
    word, nodes = job_system(environment), 0
    with suppress(RingsideError):  # a job that is over harms nobody who does not ask for its nodes
        nodes = len(job_hosts(word, environment)) if word else 0
    if nodes < 2:
        return []
    return [
        f"this job has {nodes} nodes, and all ranks run on this one; to use them: --set"
        f" hosts={word}"
    ]
