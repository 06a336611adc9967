"""Launchers of MPI, and the one that calls them: mpirun of Open MPI 4 and 5, mpiexec of MPICH, and
horovodrun, over Gloo or MPI. Each is started once in all.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from measurement.agent.ringside_agent.place import HOROVOD, MPI, RENDEZVOUS, VariableNames
from measurement.host import MPICH, OPEN_MPI
from runners.launchers.base import (
    HERE,
    HostCommand,
    HostSlots,
    Launcher,
    LaunchRequest,
    RankVariables,
)

ALLOW_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
"""Variables that Open MPI wants to be 1 before it starts ranks for root."""
GIVES = frozenset({RENDEZVOUS, MPI, HOROVOD})
OPEN_MPI_VARIABLES = RankVariables(
    names=VariableNames(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    gives=GIVES,
    others=("OMPI_COMM_WORLD_", "PMIX_"),
)
KEEP_FULL_NAMES = ("OMPI_MCA_orte_keep_fqdn_hostnames", "PRTE_MCA_prte_keep_fqdn_hostnames")
"""In Open MPI 4, and in Open MPI 5. Each ignores the other's variable."""
INTERFACES = ("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include")


class Mpirun(Launcher):
    """Open MPI 4 or 5.

    Ranks are not bound to cores: the rank sets the plan's affinity, under every launcher.
    """

    executable = "mpirun"
    rank_variables = (OPEN_MPI_VARIABLES,)

    def commands(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        """One ``mpirun``; ``-x`` passes the request's environment on to every rank."""
        argv = (
            "mpirun",
            *(word for name in request.environment for word in ("-x", name)),
            *("-np", str(request.world_size), "-H", request.host_list),
            *("--bind-to", "none", "--map-by", "slot"),
            *(("--oversubscribe",) if request.oversubscribed else ()),
            *(("--prefix", request.mpi_prefix) if request.mpi_prefix else ()),
            *request.python_command,
        )
        environment = {**request.environment, **open_mpi_environment(request)}
        return (HostCommand(host=HERE, argv=argv, environment=environment),)

    def mpi_program(self, transport: str | None) -> tuple[str, str] | None:
        return (self.executable, OPEN_MPI)


def open_mpi_environment(request: LaunchRequest) -> dict[str, str]:
    """Variables for Open MPI 4 and 5: allow root, keep full host names, and the interface (loopback
    if all ranks are here).
    """
    root = dict.fromkeys(ALLOW_ROOT, "1") if request.as_root else {}
    # Open MPI would look up the first label of a name only
    has_labels = any(re.search(r"\.[^.]*[A-Za-z]", entry.host) for entry in request.hosts)
    names = dict.fromkeys(KEEP_FULL_NAMES, "1") if has_labels else {}
    if request.is_local:
        return root | names | dict.fromkeys(INTERFACES, "lo")
    interface = request.network_interface
    every = (*INTERFACES, "PRTE_MCA_prte_if_include")  # which refuses lo
    return root | names | (dict.fromkeys(every, interface) if interface else {})


MPICH_VARIABLES = RankVariables(
    names=VariableNames("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    gives=GIVES,
    others=("PMI_", "MPI_LOCAL"),
)


END_OF_LIST = "RINGSIDE_LAST"
"""A variable that nothing reads. MPICH 4.3.2 and 5.0.2 lose the last one of their environment on
other hosts under ``-envlist``."""


class MpichMpiexec(Launcher):
    """MPICH. Horovod or mpi4py must have been built with MPICH, too."""

    executable = "mpiexec"
    rank_variables = (MPICH_VARIABLES,)

    def commands(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        """One ``mpiexec``; ``-envlist`` passes the request's environment on to every rank."""
        argv = (
            *("mpiexec", "-n", str(request.world_size), "-hosts", request.host_list),
            *("-bind-to", "none"),
            *(("-iface", request.network_interface) if request.network_interface else ()),
            *(("-envlist", ",".join(request.environment)) if request.environment else ()),
            *request.python_command,
        )
        environment = {**request.environment, END_OF_LIST: ""}
        return (HostCommand(host=HERE, argv=argv, environment=environment),)

    def mpi_program(self, transport: str | None) -> tuple[str, str] | None:
        return (self.executable, MPICH)


HOROVOD_VARIABLES = RankVariables(
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


class Horovodrun(Launcher):
    """``--gloo`` or ``--mpi`` by the transport; NCCL and none use the Gloo controller.

    Its cache in the home directory would be stale for an hour, and it fails if it cannot write
    there. Hosts are always given by ``-H``: the hostfile parser of Horovod 0.28.1 fails on blank
    lines, comments and bare host names.
    """

    executable = "horovodrun"
    rank_variables = (HOROVOD_VARIABLES, OPEN_MPI_VARIABLES)
    """Over MPI it calls mpirun, which then sets its ranks' variables."""

    def commands(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        """One ``horovodrun``; it passes its whole environment on to other hosts, by ssh or by
        mpirun's ``-x``.
        """
        over_mpi = request.transport == "mpi"
        interface, prefix = request.network_interface, request.mpi_prefix
        elsewhere = (
            # for its checks of other hosts: 30 s are too short when many Pythons start at once
            *("--start-timeout", "120"),
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
            **(open_mpi_environment(request) if over_mpi else {}),
        }
        return (HostCommand(host=HERE, argv=argv, environment=environment),)

    def gives(self, transport: str | None) -> frozenset[str]:
        """Over MPI its ranks are mpirun's."""
        return (OPEN_MPI_VARIABLES if transport == "mpi" else HOROVOD_VARIABLES).gives

    def mpi_program(self, transport: str | None) -> tuple[str, str] | None:
        """Horovod 0.28.1 does not recognize MPICH 5 by its ``mpirun --version``."""
        return (Mpirun.executable, OPEN_MPI) if transport == "mpi" else None

    def refuses(self, hosts: Sequence[HostSlots]) -> str | None:
        """Horovod 0.28.1 splits ``-H`` at colons."""
        address = next((entry.host for entry in hosts if ":" in entry.host), None)
        return f"it takes host names and IPv4 addresses, not '{address}'" if address else None
