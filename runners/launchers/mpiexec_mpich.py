"""mpiexec: MPICH's launcher (Hydra), started once in all."""

from __future__ import annotations

from measurement.needs import HOROVOD, MPI, RENDEZVOUS
from runners.launchers.base import HERE, HostCommand, Launcher, LaunchJob
from runners.launchers.rank_variables import RankVariables

VARIABLES = RankVariables(
    name="mpich",
    rank="PMI_RANK",
    world_size="PMI_SIZE",
    local_rank="MPI_LOCALRANKID",
    local_world_size="MPI_LOCALNRANKS",
    gives=frozenset({RENDEZVOUS, MPI, HOROVOD}),
    others=("PMI_", "MPI_LOCAL"),
)


class MpichMpiexec(Launcher):
    """The MPI that Horovod or mpi4py was built with must be MPICH too."""

    name = "mpiexec-mpich"
    executable = "mpiexec"
    rank_variables = (VARIABLES,)

    def commands(self, job: LaunchJob) -> tuple[HostCommand, ...]:
        """One ``mpiexec``; ``-envlist`` carries the job's environment to every rank."""
        argv = (
            *("mpiexec", "-n", str(job.world_size), "-hosts", job.host_list, "-bind-to", "none"),
            *(("-iface", job.network_interface) if job.network_interface else ()),
            *(("-envlist", ",".join(job.environment)) if job.environment else ()),
            *job.python_command,
        )
        return (HostCommand(host=HERE, argv=argv, environment=dict(job.environment)),)
