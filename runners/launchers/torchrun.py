"""PyTorch's own launchers, started once per host: torchrun (``python -m torch.distributed.run``)
and spawn, which is ``torch.multiprocessing`` in ``runners.spawn``.
"""

from __future__ import annotations

from measurement.addresses import LOOPBACK
from measurement.agent.ringside_agent.place import RENDEZVOUS, VariableNames
from runners.launchers.base import HERE, HostCommand, Launcher, LaunchRequest, RankVariables

RANK_VARIABLES = RankVariables(
    names=VariableNames(
        "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"
    ),
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
        container, nodes = request.container, str(len(request.hosts))
        # in a container it runs beside its ranks, since it starts them itself
        module = (*container, request.python, "-m", "torch.distributed.run")
        program = module if container else ("torchrun",)
        ranks = ("--max-restarts", "0", "-m", request.module, *request.arguments)
        if request.is_local:
            alone = ("--standalone", "--local-addr", LOOPBACK, "--nnodes", "1")
            count = ("--nproc-per-node", str(request.world_size))
            argv = (*program, *alone, *count, *ranks)
            return (HostCommand(host=HERE, argv=argv, environment=request.environment),)
        meeting = (
            *("--master-addr", request.rendezvous_host),
            *("--master-port", str(request.master_port)),
        )
        return tuple(
            HostCommand(
                host=entry.host,
                argv=(
                    *(*program, "--nnodes", nodes, "--node-rank", str(node), *meeting),
                    *("--nproc-per-node", str(entry.slots), *ranks),
                ),
                environment=request.environment,
            )
            for node, entry in enumerate(request.hosts)
        )


class Spawn(Launcher):
    """One Python per host that spawns its ranks and sets torchrun's variables in each."""

    executable = "python"
    rank_variables = (RANK_VARIABLES,)

    def commands(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        """One ``python -m runners.spawn`` per host."""
        ranks = ",".join(str(entry.slots) for entry in request.hosts)
        spawn = (*request.container, request.python, "-m", "runners.spawn")
        each = ("--nproc-per-node", ranks)
        module = ("-m", request.module, *request.arguments)
        if request.is_local:
            argv = (*spawn, *each, *module)
            return (HostCommand(host=HERE, argv=argv, environment=request.environment),)
        meeting = (
            *("--master-addr", request.rendezvous_host),
            *("--master-port", str(request.master_port)),
        )
        return tuple(
            HostCommand(
                host=entry.host,
                argv=(*spawn, *each, "--node-rank", str(node), *meeting, *module),
                environment=request.environment,
            )
            for node, entry in enumerate(request.hosts)
        )
