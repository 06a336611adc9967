"""A launcher for tests in which starting is not the point: ranks over Gloo, forked from what has
imported PyTorch already.

``horovodrun`` imports it once by itself and once in each rank, ``spawn`` once for each arm: most of
what a small comparison takes. On other hosts, and where no test started the driver, it is
``spawn``.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from measurement.agent.ringside_agent.place import HOROVOD
from runners.launchers.torchrun import RANK_VARIABLES, Spawn


class Forked(Spawn):
    """Rank 0 serves Horovod's rendezvous, as it does under ``mpirun`` and ``srun``."""

    rank_variables = (replace(RANK_VARIABLES, gives=RANK_VARIABLES.gives | {HOROVOD}),)

    def commands(self, request):
        """Those of ``spawn``, run in forks of the test's warm server."""
        commands = super().commands(request)
        # in pytest's own process; ranks' and users' have none
        server = sys.modules.get("tests.kit.warm_server")
        path = server.socket_path() if server else os.environ.get("TESTS_WARM_SERVER")
        if (
            path is None
            or not request.is_local
            or request.python != sys.executable
            or request.container
        ):
            return commands
        (command,) = commands
        start = str(Path(__file__).parent.parent / "start_warm.py")
        return (
            replace(command, argv=(request.python, "-I", "-S", start, path, *command.argv[1:])),
        )
