"""spawn: ``torch.multiprocessing`` on one host, with no command but Python; the module run is ``runners.spawn``."""

from __future__ import annotations

from runners.launchers.base import HostCommand, Launcher, LaunchJob


class Spawn(Launcher):
    """One Python that spawns the ranks and sets torchrun's variables in each."""

    name = "spawn"
    executable = "python"

    def commands(self, job: LaunchJob) -> tuple[HostCommand, ...]:
        """One ``python -m runners.spawn``."""
        (entry,) = job.hosts
        argv = (
            *(job.python, "-m", "runners.spawn", "--nproc-per-node", str(job.world_size)),
            *("--", job.module, *job.arguments),
        )
        return (HostCommand(host=entry.host, argv=argv, environment=dict(job.environment)),)
