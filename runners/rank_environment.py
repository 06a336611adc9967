"""The one place that reads rank variables from the environment. Only launchers write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from measurement.errors import LaunchError
from measurement.world import World


@dataclass(frozen=True, kw_only=True)
class Family:
    """The variables one family of launchers sets in every rank."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    node_rank: str | None = None

    def is_set(self, environment: Mapping[str, str]) -> bool:
        """Whether a rank of this family is what this process is."""
        return all(name in environment for name in (self.rank, self.world_size, self.local_rank))


FAMILIES = (
    Family(
        name="torchrun",
        rank="RANK",
        world_size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_world_size="LOCAL_WORLD_SIZE",
        node_rank="GROUP_RANK",
    ),
    Family(
        name="horovodrun",
        rank="HOROVOD_RANK",
        world_size="HOROVOD_SIZE",
        local_rank="HOROVOD_LOCAL_RANK",
        local_world_size="HOROVOD_LOCAL_SIZE",
        node_rank="HOROVOD_CROSS_RANK",
    ),
    Family(
        name="openmpi",
        rank="OMPI_COMM_WORLD_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Family(
        name="mpich",
        rank="PMI_RANK",
        world_size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_world_size="MPI_LOCALNRANKS",
    ),
)
"""torchrun first: started inside an MPI job, its own variables are the inner ones."""

PREFIXES_OF_RANKS = ("OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MPI_LOCAL", "TORCHELASTIC_", "HOROVOD_GLOO_RENDEZVOUS")


def read_world(environment: Mapping[str, str]) -> World:
    """This process's place, by the first family whose variables are set; a world of one where none are.

    Raises:
        LaunchError: a variable does not hold a number that fits.
    """
    family = next((family for family in FAMILIES if family.is_set(environment)), None)
    if family is None:
        return World()
    local_world_size = _number(environment, family.local_world_size, default=_number(environment, family.world_size))
    rank = _number(environment, family.rank)
    try:
        return World(
            rank=rank,
            world_size=_number(environment, family.world_size),
            local_rank=_number(environment, family.local_rank),
            local_world_size=local_world_size,
            node_rank=_number(environment, family.node_rank or "", default=rank // max(local_world_size, 1)),
            launcher=family.name,
        )
    except ValueError as error:
        raise LaunchError(f"the variables of {family.name} do not fit together: {error}; start with one launcher") from error


def without_rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy in which no process would take itself for a rank of a job that this one happens to run inside."""
    names = {name for family in FAMILIES for name in vars(family).values() if name} | {"MASTER_ADDR", "MASTER_PORT"}
    return {k: v for k, v in environment.items() if k not in names and not k.startswith(PREFIXES_OF_RANKS)}


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise LaunchError(f"environment variable {name} is {text!r}; a whole number is expected: start with one launcher") from None
