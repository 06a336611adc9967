"""spawn: ``torch.multiprocessing``, with no command but Python, once per host; the module run is ``runners.spawn``."""

from __future__ import annotations

from collections.abc import Sequence

from runners.launchers.base import HERE, HostCommand, HostSlots, Launcher, LaunchJob
from runners.launchers.torchrun import VARIABLES


class Spawn(Launcher):
    """One Python per host that spawns its ranks and sets torchrun's variables in each."""

    name = "spawn"
    executable = "python"
    rank_variables = (VARIABLES,)

    def commands(self, job: LaunchJob) -> tuple[HostCommand, ...]:
        """One ``python -m runners.spawn`` per host."""
        several = not job.is_local
        return tuple(
            HostCommand(
                host=entry.host if several else HERE,
                argv=(
                    *(job.python, "-m", "runners.spawn", "--nproc-per-node", str(entry.slots)),
                    *(self._rendezvous(job, node) if several else ()),
                    *("-m", job.module, *job.arguments),
                ),
                environment=dict(job.environment),
            )
            for node, entry in enumerate(job.hosts)
        )

    @staticmethod
    def _rendezvous(job: LaunchJob, node: int) -> tuple[str, ...]:
        where = ("--master-addr", job.rendezvous_host, "--master-port", str(job.master_port))
        return ("--nodes", str(len(job.hosts)), "--node-rank", str(node), *where)

    def refuses(self, hosts: Sequence[HostSlots]) -> str | None:
        """Every host reckons the others' ranks from its own."""
        counts = {entry.slots for entry in hosts}
        return "it needs equally many ranks on every host" if len(counts) > 1 else None


def rank_environment(
    local_rank: int, *, node_rank: int, nodes: int, nproc_per_node: int, master: tuple[str, int]
) -> dict[str, str]:
    """The variables that ``runners.spawn`` sets in a rank: torchrun's. ``master`` is host and port. Pure."""
    assert VARIABLES.node_rank is not None
    return {
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        VARIABLES.rank: str(node_rank * nproc_per_node + local_rank),
        VARIABLES.local_rank: str(local_rank),
        VARIABLES.node_rank: str(node_rank),
        VARIABLES.world_size: str(nodes * nproc_per_node),
        VARIABLES.local_world_size: str(nproc_per_node),
    }
