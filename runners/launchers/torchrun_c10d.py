"""torchrun with the c10d rendezvous, as elastic jobs use it."""

from __future__ import annotations

from collections.abc import Sequence

from measurement.addresses import with_port
from runners.launchers.base import HostSlots, LaunchJob
from runners.launchers.torchrun import Torchrun


class TorchrunC10d(Torchrun):
    """The same with the rendezvous that elastic jobs use: hosts number themselves, in the order of their addresses."""

    name = "torchrun-c10d"

    def _rendezvous(self, job: LaunchJob, node: int) -> tuple[str, ...]:
        assert job.master_port is not None
        endpoint = with_port(job.rendezvous_host, job.master_port)
        return (
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", job.run_id),
            *("--local-addr", job.hosts[node].host),
        )

    def refuses(self, hosts: Sequence[HostSlots]) -> str | None:
        """Ranks would not lie where those of the other arms do."""
        names = [entry.host for entry in hosts]
        return "it numbers hosts in the order of their names; list them so" if names != sorted(names) else None
