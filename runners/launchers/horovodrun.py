"""horovodrun: Horovod's own launcher, started once in all. Over MPI it calls mpirun itself."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from measurement.agent.ringside_agent.place import HOROVOD, VariableNames
from measurement.host import OPEN_MPI
from runners.launchers import mpirun
from runners.launchers.base import HERE, HostCommand, HostSlots, Launcher, LaunchRequest
from runners.launchers.rank_variables import RankVariables

RANK_VARIABLES = RankVariables(
    names=VariableNames(
        "horovodrun",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
    ),
    gives=frozenset({HOROVOD}),
    others=("HOROVOD_GLOO_RENDEZVOUS",),
)

BINDING = "--binding-args=--bind-to none --map-by slot"
"""Horovod's default, spelled for Open MPI 5, which reads ``-bind-to none`` with one dash as a
program called "none"."""
START_TIMEOUT_S = 120
"""For its checks of other hosts. Its default of 30 s is too short when many Pythons start at
once."""


class Horovodrun(Launcher):
    """``--gloo`` or ``--mpi`` by the transport; NCCL and none use the Gloo controller.

    Its cache in the home directory would be stale for an hour, and it fails if it cannot write
    there. Hosts are always given by ``-H``: the hostfile parser of Horovod 0.28.1 fails on blank
    lines, comments and bare host names.
    """

    executable = "horovodrun"
    rank_variables = (RANK_VARIABLES, mpirun.RANK_VARIABLES)
    """Over MPI it calls mpirun, which then sets its ranks' variables."""

    def commands(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        """One ``horovodrun``; it passes its whole environment on to other hosts, by ssh or by
        mpirun's ``-x``.
        """
        over_mpi = request.transport == "mpi"
        interface, prefix = request.network_interface, request.mpi_prefix
        elsewhere = (
            *("--start-timeout", str(START_TIMEOUT_S)),
            *(("--network-interfaces", interface) if interface else ()),
            *((f"--mpi-args=--prefix {shlex.quote(prefix)}",) if over_mpi and prefix else ()),
        )
        argv = (
            *("horovodrun", "--mpi" if over_mpi else "--gloo"),
            *("-np", str(request.world_size), "-H", request.host_list, "--disable-cache"),
            *((BINDING,) if over_mpi else ()),
            *(() if request.is_local else elsewhere),
            *request.python_command,
        )
        environment = {
            **request.environment,
            **(mpirun.open_mpi_environment(request) if over_mpi else {}),
        }
        return (HostCommand(host=HERE, argv=argv, environment=environment),)

    def gives(self, transport: str | None) -> frozenset[str]:
        """Over MPI its ranks are mpirun's."""
        return mpirun.RANK_VARIABLES.gives if transport == "mpi" else RANK_VARIABLES.gives

    def mpi_program(self, transport: str | None) -> tuple[str, str] | None:
        """Horovod 0.28.1 does not recognize MPICH 5 by its ``mpirun --version``."""
        return (mpirun.Mpirun.executable, OPEN_MPI) if transport == "mpi" else None

    def refuses(self, hosts: Sequence[HostSlots]) -> str | None:
        """Horovod 0.28.1 splits ``-H`` at colons."""
        address = next((entry.host for entry in hosts if ":" in entry.host), None)
        return f"it takes host names and IPv4 addresses, not '{address}'" if address else None
