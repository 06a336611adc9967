"""Where a rank stands among the others, and which device it computes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class World:
    """One rank's place, as its launcher told it.

    ``launcher`` names the family of environment variables it was read from, for the record.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    launcher: str = "none"
    gives: frozenset[str] = frozenset()
    """What the launcher gives its ranks, see ``measurement.world``."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} lies outside a world of {self.world_size}")
        if not 0 <= self.local_rank < self.local_world_size:
            raise ValueError(f"local rank {self.local_rank} lies outside {self.local_world_size} local ranks")


RENDEZVOUS = "rendezvous"
"""A place to meet: an address in MASTER_ADDR and MASTER_PORT, or MPI, over which rank 0 tells the others its own."""
MPI = "mpi"
"""The ranks are those of one MPI world."""
HOROVOD = "horovod"
"""What Horovod finds its rank and the other ranks by: HOROVOD_* variables, or MPI's."""
ALLOW_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
"""Variables that Open MPI wants to be 1 before it starts ranks for root."""
