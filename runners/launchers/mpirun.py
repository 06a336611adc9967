"""mpirun of Open MPI 4 and 5, and mpiexec of MPICH: each started once in all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from measurement.agent.ringside_agent.place import HOROVOD, MPI, RENDEZVOUS
from measurement.probes.installed_libraries import MPICH, OPEN_MPI
from runners.launchers.base import HERE, HostCommand, HostSlots, Launcher, LaunchRequest
from runners.launchers.carried_variables import with_variables
from runners.launchers.command_lines import command_of
from runners.launchers.rank_variables import RankVariables

ALLOW_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
"""Variables that Open MPI wants to be 1 before it starts ranks for root."""
GIVES = frozenset({RENDEZVOUS, MPI, HOROVOD})
RANK_VARIABLES = RankVariables(
    name="openmpi",
    rank="OMPI_COMM_WORLD_RANK",
    world_size="OMPI_COMM_WORLD_SIZE",
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    local_world_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    gives=GIVES,
    others=("OMPI_COMM_WORLD_", "PMIX_"),
)
KEEP_FULL_NAMES, KEEP_FULL_NAMES_5 = (
    "OMPI_MCA_orte_keep_fqdn_hostnames",
    "PRTE_MCA_prte_keep_fqdn_hostnames",
)
"""In Open MPI 4, and in Open MPI 5. Each ignores the other's variable."""


class Mpirun(Launcher):
    """Open MPI 4 or 5.

    Ranks are not bound to cores: the rank sets the plan's affinity, under every launcher.
    """

    executable = "mpirun"
    rank_variables = (RANK_VARIABLES,)

    def commands(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        """One ``mpirun``; ``-x`` passes the request's environment on to every rank."""
        argv = (
            *(
                "mpirun",
                "-np",
                str(request.world_size),
                "-H",
                request.host_list,
                "--bind-to",
                "none",
                "--map-by",
                "slot",
            ),
            *(("--oversubscribe",) if request.oversubscribed else ()),
            *(
                ("--prefix", request.mpi_prefix)
                if request.mpi_prefix and not request.is_local
                else ()
            ),
            *request.python_command,
        )
        environment = dict(request.environment) | open_mpi_environment(request)
        return (
            HostCommand(
                host=HERE,
                argv=with_variables(command_of(argv), request.environment),
                environment=environment,
            ),
        )

    def mpi_program(self, transport: str | None) -> tuple[str, str] | None:
        return (self.executable, OPEN_MPI)


def open_mpi_environment(request: LaunchRequest) -> dict[str, str]:
    """Variables for Open MPI 4 and 5: allow root, keep full host names, and the interface (loopback
    if all ranks are here).
    """
    root = dict.fromkeys(ALLOW_ROOT, "1") if request.as_root else {}
    names = (
        dict.fromkeys((KEEP_FULL_NAMES, KEEP_FULL_NAMES_5), "1")
        if needs_full_names(request.hosts)
        else {}
    )
    interface = "lo" if request.is_local else request.network_interface
    # which refuses lo
    of_daemons = (
        "OMPI_MCA_oob_tcp_if_include",
        *(() if request.is_local else ("PRTE_MCA_prte_if_include",)),
    )
    interfaces = (
        dict.fromkeys((*of_daemons, "OMPI_MCA_btl_tcp_if_include"), interface) if interface else {}
    )
    return root | names | interfaces


def needs_full_names(hosts: Sequence[HostSlots]) -> bool:
    """Whether a host name has more than one label. Open MPI would look up the first label only."""
    return any(re.search(r"\.[^.]*[A-Za-z]", entry.host) for entry in hosts)


MPICH_VARIABLES = RankVariables(
    name="mpich",
    rank="PMI_RANK",
    world_size="PMI_SIZE",
    local_rank="MPI_LOCALRANKID",
    local_world_size="MPI_LOCALNRANKS",
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
            *(
                "mpiexec",
                "-n",
                str(request.world_size),
                "-hosts",
                request.host_list,
                "-bind-to",
                "none",
            ),
            *(("-iface", request.network_interface) if request.network_interface else ()),
            *(("-envlist", "") if request.environment else ()),
            *request.python_command,
        )
        argv = with_variables(command_of(argv), request.environment, is_open_mpi=False)
        return (
            HostCommand(
                host=HERE, argv=argv, environment=dict(request.environment) | {END_OF_LIST: ""}
            ),
        )

    def mpi_program(self, transport: str | None) -> tuple[str, str] | None:
        return (self.executable, MPICH)
