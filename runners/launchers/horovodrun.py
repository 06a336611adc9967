"""horovodrun: Horovod's own launcher, started once in all. Over MPI it calls mpirun itself."""

from __future__ import annotations

from runners.launchers.base import HostCommand, Launcher, LaunchJob
from runners.launchers.mpirun import open_mpi_environment


class Horovodrun(Launcher):
    """``--gloo`` or ``--mpi`` by the transport; NCCL and none use the Gloo controller.

    Hosts always go by ``-H``: the hostfile parser of Horovod 0.28.1 fails on blank lines, comments and bare host names.
    """

    name = "horovodrun"
    executable = "horovodrun"

    def commands(self, job: LaunchJob) -> tuple[HostCommand, ...]:
        """One ``horovodrun``."""
        over_mpi = job.transport == "mpi"
        argv = (
            *("horovodrun", "--mpi" if over_mpi else "--gloo"),
            *("-np", str(job.world_size), "-H", job.host_list),
            *job.python_command,
        )
        environment = dict(job.environment) | (open_mpi_environment(job) if over_mpi else {})
        return (HostCommand(host=job.hosts[0].host, argv=argv, environment=environment),)
