"""Which rank this process is: by its library where that is initialised, else by the variables of its launcher."""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping, NamedTuple, Sequence

from .settings import Settings


class Family(NamedTuple):
    """The variables by which a launcher tells a process its place."""

    launcher: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    node_rank: str | None = None


class Place(NamedTuple):
    """A rank's place among the others."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    launcher: str = "none"


def find_place(settings: Settings) -> Place:
    """This process's place, as its library counts it; the one with the larger world, where both are initialised."""
    told = place_of_variables(os.environ, settings.families)
    counted = max((one for one in (_of_torch(), _of_horovod()) if one is not None), key=lambda one: one[1], default=told[:2])
    if counted[:2] == told[:2]:
        return told
    local = counted[2:] if len(counted) > 2 else (counted[0], counted[1])
    nodes = counted[0] // max(local[1], 1)
    return Place(counted[0], counted[1], local[0], local[1], nodes, told.launcher)


def place_of_variables(environment: Mapping[str, str], families: Sequence[Sequence[str | None]]) -> Place:
    """The place by the first launcher whose variables are all there; rank 0 of 1 without."""
    for names in families:
        family = Family(*names)  # type: ignore[arg-type]  # a launcher has all names but the last
        rank, world_size = (_number(environment, name) for name in (family.rank, family.world_size))
        if rank is None or world_size is None:
            continue
        local_rank = _number(environment, family.local_rank)
        local_world_size = _number(environment, family.local_world_size) or world_size
        node_rank = _number(environment, family.node_rank) if family.node_rank else None
        return Place(
            rank,
            world_size,
            rank % local_world_size if local_rank is None else local_rank,
            local_world_size,
            rank // local_world_size if node_rank is None else node_rank,
            family.launcher,
        )
    return Place()


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """``2`` and Slurm's ``2(x3)`` are both 2."""
    try:
        return int(environment.get(name, "").partition("(")[0].partition(",")[0])
    except ValueError:
        return None


def _of_torch() -> tuple[int, ...] | None:
    torch: Any = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _of_horovod() -> tuple[int, ...] | None:
    horovod: Any = sys.modules.get("horovod.torch")
    if horovod is None or not horovod.is_initialized():
        return None
    return horovod.rank(), horovod.size(), horovod.local_rank(), horovod.local_size()
