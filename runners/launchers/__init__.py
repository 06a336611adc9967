"""How ranks are started: each launcher turns a job into commands and does nothing else."""

from __future__ import annotations

from measurement.errors import PlanError
from measurement.registry import Registry
from runners.launchers.base import HERE, HostCommand, HostSlots, Launcher, LaunchJob

REGISTRY = Registry(
    kind="launcher",
    group="ringside.launchers",
    table={
        "torchrun": "runners.launchers.torchrun:Torchrun",
        "torchrun-c10d": "runners.launchers.torchrun:TorchrunC10d",
        "horovodrun": "runners.launchers.horovodrun:Horovodrun",
        "mpirun": "runners.launchers.mpirun:Mpirun",
        "mpiexec-mpich": "runners.launchers.mpirun:MpichMpiexec",
        "spawn": "runners.launchers.spawn:Spawn",
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


__all__ = ["HERE", "REGISTRY", "HostCommand", "HostSlots", "LaunchJob", "Launcher", "make_launcher"]
