"""How ranks are started: each launcher turns a request into commands and does nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from measurement.agent.ringside_agent.place import World
from measurement.errors import PlanError
from measurement.registry import Registry
from runners.launchers.base import (
    HERE,
    HostCommand,
    HostSlots,
    Launcher,
    LaunchRequest,
    RankVariables,
    read_world,
)

REGISTRY = Registry(
    kind="launcher",
    group="ringside.launchers",
    table={
        "torchrun": "runners.launchers.torchrun:Torchrun",
        "horovodrun": "runners.launchers.mpirun:Horovodrun",
        "mpirun": "runners.launchers.mpirun:Mpirun",
        "mpiexec-mpich": "runners.launchers.mpirun:MpichMpiexec",
        "spawn": "runners.launchers.torchrun:Spawn",
        "srun": "runners.launchers.slurm:Srun",
    },
)


def make_launcher(reference: str) -> Launcher:
    """The launcher a name or ``module:Class`` refers to.

    Raises:
        PlanError: unknown, not loadable, or no Launcher.
    """
    launcher = REGISTRY.resolve(reference)
    if not issubclass(launcher, Launcher):
        name = launcher.__name__
        raise PlanError(
            f"launcher '{reference}' is {name}, which does not derive from"
            " runners.launchers.base.Launcher"
        )
    return launcher()


def known_rank_variables() -> list[RankVariables]:
    """Variables of all registered launchers, inner before outer since torchrun runs inside MPI
    jobs, plug-ins last.
    """
    known: dict[RankVariables, None] = {}
    for name in REGISTRY.names():
        # a plug-in that cannot be loaded is refused where a plan names it
        with suppress(PlanError):
            known |= dict.fromkeys(make_launcher(name).rank_variables)
    return list(known)


def read_own_world() -> World:
    """The place of this process, from the registered launcher that started it.

    Raises:
        LaunchError: see ``read_world``.
    """
    return read_world(os.environ, known_rank_variables())


def meeting_place(environment: Mapping[str, str]) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT of a run without a driver; empty if neither environment nor
    launcher gives them.
    """
    launchers = (each for each in known_rank_variables() if each.are_set(environment))
    place = next((each.meeting_place(environment) for each in launchers), {})
    names = ("MASTER_ADDR", "MASTER_PORT")
    return place | {name: environment[name] for name in names if name in environment}


def without_rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy without rank variables, so that no process takes itself for a rank of the job that
    this one runs in.
    """
    launchers = known_rank_variables()
    return {
        name: value
        for name, value in environment.items()
        if not any(
            name in variables.names[1:] or name.startswith(variables.others)
            for variables in launchers
        )
    }


__all__ = [
    "HERE",
    "REGISTRY",
    "HostCommand",
    "HostSlots",
    "LaunchRequest",
    "Launcher",
    "RankVariables",
    "make_launcher",
]
