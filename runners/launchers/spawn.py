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
        several = not request.is_local
        ranks = ",".join(str(entry.slots) for entry in request.hosts)
        return tuple(
            HostCommand(
                host=entry.host if several else HERE,
                argv=(
                    *(
                        *request.container,
                        request.python,
                        "-m",
                        "runners.spawn",
                        "--nproc-per-node",
                        ranks,
                    ),
                    *(("--node-rank", str(node)) if several else ()),
                    *(
                        (
                            "--master-addr",
                            request.rendezvous_host,
                            "--master-port",
                            str(request.master_port),
                        )
                        if several
                        else ()
                    ),
                    *("-m", request.module, *request.arguments),
                ),
                environment=dict(request.environment),
            )
            for node, entry in enumerate(request.hosts)
        )
