"""How ranks are started: each launcher turns a job into commands and does nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from measurement.agent.ringside_agent.place import World
from measurement.errors import PlanError
from measurement.registry import Registry
from runners.launchers.base import HERE, HostCommand, HostSlots, Launcher, RankCommand
from runners.launchers.rank_variables import RankVariables, read_world

REGISTRY = Registry(
    kind="launcher",
    group="ringside.launchers",
    table={
        "torchrun": "runners.launchers.torchrun:Torchrun",
        "horovodrun": "runners.launchers.horovodrun:Horovodrun",
        "mpirun": "runners.launchers.mpirun:Mpirun",
        "mpiexec-mpich": "runners.launchers.mpirun:MpichMpiexec",
        "spawn": "runners.launchers.spawn:Spawn",
        "srun": "runners.launchers.srun:Srun",
    },
)


def make_launcher(reference: str) -> Launcher:
    """The launcher a name or ``module:Class`` refers to.

    Raises:
        PlanError: unknown, not loadable, or no Launcher.
    """
    found = REGISTRY.resolve(reference)
    if not issubclass(found, Launcher):
        raise PlanError(f"launcher '{reference}' is {found.__name__}, which does not derive from runners.launchers.base.Launcher")
    return found()


def known_rank_variables() -> list[RankVariables]:
    """Variables of all registered launchers, plug-ins last, an inner one before an outer one: torchrun runs inside MPI jobs."""
    found: dict[RankVariables, None] = {}
    for name in REGISTRY.names():
        with suppress(PlanError):  # a plug-in that cannot be loaded is refused where somebody names it
            found |= dict.fromkeys(make_launcher(name).rank_variables)
    return list(found)


def read_own_world() -> World:
    """The place of this process, by whichever registered launcher started it.

    Raises:
        LaunchError: see ``read_world``.
    """
    return read_world(os.environ, known_rank_variables())


def meeting_place(environment: Mapping[str, str]) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT by which the ranks of a run without a driver meet; nothing where their launcher says none."""
    given = {name: environment[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in environment}
    family = next((family for family in known_rank_variables() if family.are_set(environment)), None)
    return (family.meeting_place(environment) if family else {}) | given


def without_rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy in which no process would take itself for a rank of a job that this one happens to run inside."""
    families = known_rank_variables()
    return {name: value for name, value in environment.items() if not any(family.belong(name) for family in families)}


__all__ = ["HERE", "REGISTRY", "HostCommand", "HostSlots", "Launcher", "RankCommand", "RankVariables", "make_launcher"]
