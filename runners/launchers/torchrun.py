"""torchrun (``python -m torch.distributed.run``): PyTorch's own launcher, started once per host."""

from __future__ import annotations

from collections.abc import Sequence

from runners.launchers.base import HERE, HostCommand, HostSlots, Launcher, LaunchJob


class Torchrun(Launcher):
    """On one host the rendezvous port is chosen by torchrun itself, on loopback; several meet at the first, each told its place."""

    name = "torchrun"
    executable = "torchrun"

    def commands(self, job: LaunchJob) -> tuple[HostCommand, ...]:
        """One ``torchrun`` per host. OMP_NUM_THREADS must be in the job's environment: torchrun would set it to 1."""
        environment = dict(job.environment)
        if job.is_local:
            argv = ("torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nnodes", "1", *self._ranks(job, job.world_size))
            return (HostCommand(host=HERE, argv=argv, environment=environment),)
        return tuple(
            HostCommand(
                host=entry.host,
                argv=("torchrun", "--nnodes", str(len(job.hosts)), *self._meeting(job, node), *self._ranks(job, entry.slots)),
                environment=environment,
            )
            for node, entry in enumerate(job.hosts)
        )

    def _ranks(self, job: LaunchJob, number: int) -> tuple[str, ...]:
        return ("--nproc-per-node", str(number), "--max-restarts", "0", "-m", job.module, *job.arguments)

    def _meeting(self, job: LaunchJob, node: int) -> tuple[str, ...]:
        """Static rendezvous: every host is told its number, and ranks follow it."""
        return ("--node-rank", str(node), "--master-addr", job.meeting_host, "--master-port", str(job.master_port))


class TorchrunC10d(Torchrun):
    """The same with the rendezvous that elastic jobs use: hosts number themselves, in the order of their addresses."""

    name = "torchrun-c10d"

    def _meeting(self, job: LaunchJob, node: int) -> tuple[str, ...]:
        host = f"[{job.meeting_host}]" if ":" in job.meeting_host else job.meeting_host
        return (
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{job.master_port}", "--rdzv-id", job.run_id),
            *("--local-addr", job.hosts[node].host),
        )

    def refuses(self, hosts: Sequence[HostSlots]) -> str | None:
        """Ranks would not lie where those of the other arms do."""
        names = [entry.host for entry in hosts]
        return "it numbers hosts in the order of their names; list them so" if names != sorted(names) else None
