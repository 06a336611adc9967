"""A launcher whose ranks find the port taken at which they are to meet."""

from __future__ import annotations

import socket

from runners.launchers import RankCommand
from runners.launchers.base import HostCommand
from runners.launchers.spawn import Spawn


class PortTaken(Spawn):
    """Somebody else listens where its ranks are told to meet."""

    def commands(self, job: RankCommand) -> tuple[HostCommand, ...]:
        self.squatter = socket.create_server(("", job.master_port))
        return super().commands(job)
