"""A launcher whose ranks find the port taken at which they are to meet."""

from __future__ import annotations

import socket

from runners.launchers import LaunchRequest
from runners.launchers.base import HostCommand
from runners.launchers.torchrun import Spawn


class PortTaken(Spawn):
    """Somebody else listens where its ranks are told to meet."""

    def commands(self, request: LaunchRequest) -> tuple[HostCommand, ...]:
        self.squatter = socket.create_server(("", request.master_port))
        return super().commands(request)
