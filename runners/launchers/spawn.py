"""spawn: ``torch.multiprocessing``, with no command but Python, once per host; the module run is ``runners.spawn``."""

from __future__ import annotations

from collections.abc import Sequence

from runners.launchers.base import HERE, HostCommand, HostSlots, Launcher, LaunchJob


class Spawn(Launcher):
    """One Python per host that spawns its ranks and sets torchrun's variables in each."""

    name = "spawn"
    executable = "python"

    def commands(self, job: LaunchJob) -> tuple[HostCommand, ...]:
        """One ``python -m runners.spawn`` per host."""
        several = not job.is_local
        return tuple(
            HostCommand(
                host=entry.host if several else HERE,
                argv=(
                    *(job.python, "-m", "runners.spawn", "--nproc-per-node", str(entry.slots)),
                    *(self._meeting(job, node) if several else ()),
                    *("-m", job.module, *job.arguments),
                ),
                environment=dict(job.environment),
            )
            for node, entry in enumerate(job.hosts)
        )

    @staticmethod
    def _meeting(job: LaunchJob, node: int) -> tuple[str, ...]:
        where = ("--master-addr", job.meeting_host, "--master-port", str(job.master_port))
        return ("--nodes", str(len(job.hosts)), "--node-rank", str(node), *where)

    def refuses(self, hosts: Sequence[HostSlots]) -> str | None:
        """Every host reckons the others' ranks from its own."""
        counts = {entry.slots for entry in hosts}
        return "it needs equally many ranks on every host" if len(counts) > 1 else None
