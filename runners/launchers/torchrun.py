"""torchrun (``python -m torch.distributed.run``): PyTorch's own launcher, started once per host."""

from __future__ import annotations

from runners.launchers.base import HostCommand, Launcher, LaunchJob


class Torchrun(Launcher):
    """A single host; the rendezvous port is chosen by torchrun itself, on loopback."""

    name = "torchrun"
    executable = "torchrun"

    def commands(self, job: LaunchJob) -> tuple[HostCommand, ...]:
        """One ``torchrun --standalone``. OMP_NUM_THREADS must be in the job's environment: torchrun would set it to 1."""
        (entry,) = job.hosts
        argv = (
            *("torchrun", "--standalone", "--local-addr", "127.0.0.1"),
            *("--nnodes", "1", "--nproc-per-node", str(job.world_size), "--max-restarts", "0"),
            *("-m", job.module, *job.arguments),
        )
        return (HostCommand(host=entry.host, argv=argv, environment=dict(job.environment)),)
