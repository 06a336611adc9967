"""spawn: ``torch.multiprocessing``, with no command but Python, once per host; the module run is ``runners.spawn``."""

from __future__ import annotations

from collections.abc import Sequence

from runners.launchers.base import HERE, HostCommand, Launcher, LaunchJob
from runners.launchers.torchrun import VARIABLES


class Spawn(Launcher):
    """One Python per host that spawns its ranks and sets torchrun's variables in each."""

    executable = "python"
    rank_variables = (VARIABLES,)

    def commands(self, job: LaunchJob) -> tuple[HostCommand, ...]:
        """One ``python -m runners.spawn`` per host."""
        several = not job.is_local
        ranks = ",".join(str(entry.slots) for entry in job.hosts)
        return tuple(
            HostCommand(
                host=entry.host if several else HERE,
                argv=(
                    *(*job.container, job.python, "-m", "runners.spawn", "--nproc-per-node", ranks),
                    *(("--node-rank", str(node)) if several else ()),
                    *(("--master-addr", job.rendezvous_host, "--master-port", str(job.master_port)) if several else ()),
                    *("-m", job.module, *job.arguments),
                ),
                environment=dict(job.environment),
            )
            for node, entry in enumerate(job.hosts)
        )


def rank_environment(local_rank: int, *, node_rank: int, ranks: Sequence[int], master: tuple[str, int]) -> dict[str, str]:
    """The variables that ``runners.spawn`` sets in a rank: torchrun's. Pure.

    Args:
        local_rank: of this host's.
        node_rank: of this host.
        ranks: on each host.
        master: host and port of the store.
    """
    assert VARIABLES.node_rank is not None
    return {
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        VARIABLES.rank: str(sum(ranks[:node_rank]) + local_rank),
        VARIABLES.local_rank: str(local_rank),
        VARIABLES.node_rank: str(node_rank),
        VARIABLES.world_size: str(sum(ranks)),
        VARIABLES.local_world_size: str(ranks[node_rank]),
    }
