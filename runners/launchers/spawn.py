"""spawn: ``torch.multiprocessing``, with no command but Python, once per host; the module run is
``runners.spawn``.
"""

from __future__ import annotations

from runners.launchers.base import HERE, HostCommand, Launcher, RankCommand
from runners.launchers.torchrun import VARIABLES


class Spawn(Launcher):
    """One Python per host that spawns its ranks and sets torchrun's variables in each."""

    executable = "python"
    rank_variables = (VARIABLES,)

    def commands(self, job: RankCommand) -> tuple[HostCommand, ...]:
        """One ``python -m runners.spawn`` per host."""
        several = not job.is_local
        ranks = ",".join(str(entry.slots) for entry in job.hosts)
        return tuple(
            HostCommand(
                host=entry.host if several else HERE,
                argv=(
                    *(*job.container, job.python, "-m", "runners.spawn", "--nproc-per-node", ranks),
                    *(("--node-rank", str(node)) if several else ()),
                    *(
                        (
                            "--master-addr",
                            job.rendezvous_host,
                            "--master-port",
                            str(job.master_port),
                        )
                        if several
                        else ()
                    ),
                    *("-m", job.module, *job.arguments),
                ),
                environment=dict(job.environment),
            )
            for node, entry in enumerate(job.hosts)
        )
