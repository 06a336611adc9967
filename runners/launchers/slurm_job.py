"""The Slurm job that a process runs in, read from its environment; nothing is called.

Inside one (``salloc``, ``sbatch``) its nodes are reached by steps of the job (``srun --overlap``):
many sites forbid ssh.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from measurement.errors import LaunchError, quoted
from runners.launchers.base import HostSlots

MAX_NODES = 65536
OVERLAP = "SLURM_OVERLAP"
"""An srun without ``--overlap`` reads it."""


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """Nodes and tasks of a job."""

    job_id: str
    hosts: tuple[HostSlots, ...]
    """Its nodes, with as many slots as tasks (``--ntasks-per-node``), or as cores where it asked
    for no tasks."""

    def has(self, host: str) -> bool:
        """Whether a host is one of its nodes."""
        return any(entry.host == host for entry in self.hosts)

    @property
    def host_list(self) -> str:
        """``node1:4,node2:4``."""
        return ",".join(map(str, self.hosts))


def shared_cores(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that let arms, and mpirun's daemons, share the cores of their Slurm job; none
    outside of a job.
    """
    return {OVERLAP: "1"} if slurm_job(environment) else {}


def slurm_job(environment: Mapping[str, str]) -> SlurmJob | None:
    """Read the job; None outside of a job.

    Raises:
        LaunchError: a variable of Slurm's cannot be read.
    """
    job_id, nodes = environment.get("SLURM_JOB_ID"), environment.get("SLURM_JOB_NODELIST")
    if not job_id or not nodes:
        return None
    names = expand_nodes(nodes)
    tasks = (
        environment.get("SLURM_TASKS_PER_NODE")
        or environment.get("SLURM_JOB_CPUS_PER_NODE")
        or f"1(x{len(names)})"
    )
    slots = expand_counts(tasks)
    if len(slots) != len(names):
        raise LaunchError(
            f"Slurm's variables do not fit together: {len(names)} nodes in SLURM_JOB_NODELIST,"
            f" tasks on {len(slots)}"
        )
    return SlurmJob(
        job_id=job_id,
        hosts=tuple(
            HostSlots(host=name, slots=count) for name, count in zip(names, slots, strict=True)
        ),
    )


def expand_nodes(text: str) -> list[str]:
    """Return the names in a list such as ``gpu[01-03,7],login,rack[1-2]n[1-2]``, in its order.

    Raises:
        LaunchError: it is no such list, or has more than 65,536 nodes.
    """
    names: list[str] = []
    for part in filter(None, re.split(r",(?![^\[]*\])", text)):
        names += _expanded(part, text)
        if len(names) > MAX_NODES:
            raise _no_list(text)
    return names


def expand_counts(text: str) -> list[int]:
    """Return the number for each node in a list such as ``4(x2),1``.

    Raises:
        LaunchError: it is no such list.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,5})\))?", part)
        if match is None or not 0 < int(match[2] or 1) + len(counts) <= MAX_NODES:
            raise LaunchError(
                f"{quoted(text)} is not a list of numbers as Slurm writes it, such as '4(x2),1'"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _expanded(part: str, text: str) -> list[str]:
    """Return the names of one part, such as ``r[1-2]n[08-09]``: text alternates with lists of
    numbers.
    """
    pieces = re.split(r"\[([0-9,-]+)\]", part)
    choices = [
        _numbers(piece, text) if number % 2 else [piece] for number, piece in enumerate(pieces)
    ]
    if re.search(r"[\[\]]", "".join(pieces)) or math.prod(map(len, choices)) > MAX_NODES:
        raise _no_list(text)
    return ["".join(names) for names in itertools.product(*choices)]


def _numbers(listed: str, text: str) -> list[str]:
    """``01-03,7`` is 01, 02, 03, 7."""
    numbers: list[str] = []
    for span in listed.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", span)
        if match is None:
            raise _no_list(text)
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < MAX_NODES:
            raise _no_list(text)
        numbers += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return numbers


def _no_list(text: str) -> LaunchError:
    return LaunchError(
        f"{quoted(text)} is not a list of nodes as Slurm writes it, such as 'node[01-04,7]'"
    )
