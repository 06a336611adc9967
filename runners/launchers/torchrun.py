"""torchrun (``python -m torch.distributed.run``): PyTorch's own launcher, started once per host."""

from __future__ import annotations

from measurement.addresses import LOOPBACK
from measurement.agent.ringside_agent.place import RENDEZVOUS
from runners.launchers.base import HERE, HostCommand, Launcher, RankCommand
from runners.launchers.rank_variables import RankVariables

VARIABLES = RankVariables(
    name="torchrun",
    rank="RANK",
    world_size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    local_world_size="LOCAL_WORLD_SIZE",
    node_rank="GROUP_RANK",
    gives=frozenset({RENDEZVOUS}),
    others=("TORCHELASTIC_", "MASTER_ADDR", "MASTER_PORT"),
)


class Torchrun(Launcher):
    """On one host torchrun chooses the rendezvous port itself, on loopback.

    Several hosts meet at the first, by node rank.
    """

    executable = "torchrun"
    rank_variables = (VARIABLES,)

    def commands(self, job: RankCommand) -> tuple[HostCommand, ...]:
        """One ``torchrun`` per host.

        OMP_NUM_THREADS must be in the job's environment: torchrun would set it to 1.
        """
        environment = dict(job.environment)
        if job.is_local:
            argv = (
                *_torchrun(job),
                "--standalone",
                "--local-addr",
                LOOPBACK,
                "--nnodes",
                "1",
                *_ranks(job, job.world_size),
            )
            return (HostCommand(host=HERE, argv=argv, environment=environment),)
        return tuple(
            HostCommand(
                host=entry.host,
                argv=(
                    *_torchrun(job),
                    *("--nnodes", str(len(job.hosts)), "--node-rank", str(node)),
                    *("--master-addr", job.rendezvous_host, "--master-port", str(job.master_port)),
                    *_ranks(job, entry.slots),
                ),
                environment=environment,
            )
            for node, entry in enumerate(job.hosts)
        )


def _ranks(job: RankCommand, number: int) -> tuple[str, ...]:
    return (
        "--nproc-per-node",
        str(number),
        "--max-restarts",
        "0",
        "-m",
        job.module,
        *job.arguments,
    )


def _torchrun(job: RankCommand) -> tuple[str, ...]:
    """In a container torchrun runs beside its ranks, since it starts them itself."""
    return (
        (*job.container, job.python, "-m", "torch.distributed.run")
        if job.container
        else ("torchrun",)
    )
