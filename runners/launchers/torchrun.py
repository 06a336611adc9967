"""torchrun (``python -m torch.distributed.run``): PyTorch's own launcher, started once per host."""

from __future__ import annotations

from measurement.addresses import LOOPBACK
from measurement.agent.ringside_agent.place import RENDEZVOUS
from runners.launchers.base import HERE, HostCommand, Launcher, LaunchRequest
from runners.launchers.rank_variables import RankVariables

RANK_VARIABLES = RankVariables(
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
    rank_variables = (RANK_VARIABLES,)

    def commands(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        """One ``torchrun`` per host.

        OMP_NUM_THREADS must be in the request's environment: torchrun would set it to 1.
        """
        environment = dict(request.environment)
        if request.is_local:
            argv = (
                *_torchrun(request),
                "--standalone",
                "--local-addr",
                LOOPBACK,
                "--nnodes",
                "1",
                *_ranks(request, request.world_size),
            )
            return (HostCommand(host=HERE, argv=argv, environment=environment),)
        return tuple(
            HostCommand(
                host=entry.host,
                argv=(
                    *_torchrun(request),
                    *("--nnodes", str(len(request.hosts)), "--node-rank", str(node)),
                    *(
                        "--master-addr",
                        request.rendezvous_host,
                        "--master-port",
                        str(request.master_port),
                    ),
                    *_ranks(request, entry.slots),
                ),
                environment=environment,
            )
            for node, entry in enumerate(request.hosts)
        )


def _ranks(request: LaunchRequest, number: int) -> tuple[str, ...]:
    return (
        "--nproc-per-node",
        str(number),
        "--max-restarts",
        "0",
        "-m",
        request.module,
        *request.arguments,
    )


def _torchrun(request: LaunchRequest) -> tuple[str, ...]:
    """In a container torchrun runs beside its ranks, since it starts them itself."""
    return (
        (*request.container, request.python, "-m", "torch.distributed.run")
        if request.container
        else ("torchrun",)
    )
