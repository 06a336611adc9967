"""The Slurm job that a process runs in, read from its environment; nothing is called.

Inside one (``salloc``, ``sbatch``) its nodes are reached by steps of the job (``srun --overlap``):
many sites forbid ssh.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

from measurement.errors import LaunchError, quoted
from runners.launchers.base import HostSlots

OVERLAP = "SLURM_OVERLAP"
"""An srun without ``--overlap`` reads it."""


def shared_cores(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that let arms, and mpirun's daemons, share the cores of their Slurm job; none
    outside of a job.
    """
    return {OVERLAP: "1"} if slurm_hosts(environment) else {}


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
