"""Which rank this process is, by its library where that is initialised, else by its launcher; and
what launchers give their ranks.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Sequence

from .settings import Settings

RENDEZVOUS = "rendezvous"
"""A rendezvous: an address in MASTER_ADDR and MASTER_PORT, or MPI, over which rank 0 sends the
others its address."""
MPI = "mpi"
"""The ranks are those of one MPI world."""
HOROVOD = "horovod"
"""What Horovod finds its rank and the other ranks by: HOROVOD_* variables, or MPI's."""


class VariableNames(NamedTuple):
    """The variables in which a launcher gives a process its place."""

    launcher: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    node_rank: str | None = None


@dataclass(frozen=True)
class World:
    """One rank's place among the others. Raises a ``ValueError`` where its numbers do not fit."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    launcher: str = "none"
    """The launcher whose variables it was read from, for the record."""
    gives: frozenset[str] = frozenset()
    """What the launcher gives its ranks: ``RENDEZVOUS``, ``MPI``, ``HOROVOD``."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is out of range for world size {self.world_size}")
        if not 0 <= self.local_rank < self.local_world_size:
            raise ValueError(
                f"local rank {self.local_rank} is out of range for local world size"
                f" {self.local_world_size}"
            )


def find_world(settings: Settings) -> World:
    """This process's place, as its library counts it; where both are initialised, the one with the
    larger world.
    """
    of_variables = world_of_variables(os.environ, settings.rank_variables)
    counted = max(
        filter(None, (_of_torch(), _of_horovod())), key=lambda counts: counts[1], default=None
    )
    if counted is None or counted[:2] == (of_variables.rank, of_variables.world_size):
        return of_variables
    rank, world_size, *local = counted
    local_rank, local_world_size = local or (rank, world_size)
    return World(
        rank,
        world_size,
        local_rank,
        local_world_size,
        rank // max(local_world_size, 1),
        of_variables.launcher,
    )


def world_of_variables(
    environment: Mapping[str, str], rank_variables: Sequence[Sequence[str | None]]
) -> World:
    """The place by the first launcher whose variables are there and fit; rank 0 of 1 without."""
    for names in rank_variables:
        # a launcher has all names but the last
        variables = VariableNames(*names)  # type: ignore[arg-type]
        if variables.rank in environment and variables.world_size in environment:
            with contextlib.suppress(ValueError):
                return read_place(environment, variables)
    return World()


def read_place(environment: Mapping[str, str], variables: VariableNames) -> World:
    """The place by a launcher's variables, of which only rank and world size must be set.

    Raises:
        ValueError: one holds no number, or they do not fit together.
    """

    def number(name: str | None, default: int | None = None) -> int:
        """The number in a variable; ``default`` where that is not set."""
        text = environment.get(name or "")
        if text is None and default is not None:
            return default
        try:
            return int(text or "")
        except ValueError:
            raise ValueError(
                f"environment variable {name} is {text!r}; a whole number is expected"
            ) from None

    rank, world_size = number(variables.rank), number(variables.world_size)
    node = number(variables.node_rank, -1)
    local_world_size = world_size
    if variables.local_world_size in environment:
        local_world_size = _count_on_node(environment, variables, max(node, 0))
    each = max(local_world_size, 1)
    local_rank = number(variables.local_rank, rank % each)
    node_rank = number(variables.node_rank, rank // each)
    return World(rank, world_size, local_rank, local_world_size, node_rank, variables.launcher)


def _count_on_node(environment: Mapping[str, str], variables: VariableNames, node: int) -> int:
    """Ranks on a node. Slurm lists those of all nodes: ``4(x2),1``."""
    listed, nodes_left = environment[variables.local_world_size].strip(), node
    for part in listed.split(","):
        read = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part)
        nodes_left -= int(read[2] or 1) if read else 0
        if read and (nodes_left < 0 or listed == read[1]):
            return int(read[1])
    raise ValueError(
        f"environment variable {variables.local_world_size} is {listed!r}; ranks on node {node} are"
        " expected"
    )


def joined_distributed() -> Any:
    """``torch.distributed``, where this process is in its default group; else None."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _of_torch() -> tuple[int, ...] | None:
    distributed = joined_distributed()
    if distributed is None:
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _of_horovod() -> tuple[int, ...] | None:
    horovod: Any = sys.modules.get("horovod.torch")
    if horovod is None or not horovod.is_initialized():
        return None
    return horovod.rank(), horovod.size(), horovod.local_rank(), horovod.local_size()
