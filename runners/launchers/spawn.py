"""spawn: ``torch.multiprocessing``, with no command but Python, once per host; the module run is
``runners.spawn``.
"""

from __future__ import annotations

from runners.launchers.base import HERE, HostCommand, Launcher, LaunchRequest
from runners.launchers.torchrun import RANK_VARIABLES


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
