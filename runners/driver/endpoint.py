"""Where the ranks of all arms find the driver: its store and its supervisor server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from measurement.addresses import listen, with_port
from runners.hosts.placement import Placement
from runners.processes.supervisor_server import SupervisorServer


@dataclass(frozen=True, kw_only=True)
class DriverEndpoint:
    """Where the ranks of all arms find the driver."""

    store: Any
    """The ``TCPStore`` that the driver serves."""
    store_address: str
    supervisors: SupervisorServer
    run_id: str
    placement: Placement


@contextmanager
def open_endpoint(placement: Placement) -> Iterator[DriverEndpoint]:
    """Serve the store and the supervisor connections; on loopback if all ranks are on this host."""
    from torch.distributed import TCPStore

    address = placement.driver_address
    supervisors = SupervisorServer(address=address)
    listening = listen(address)
    port = listening.getsockname()[1]
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
        master_listen_fd=listening.detach(),
    )
    try:
        yield DriverEndpoint(
            store=store,
            store_address=with_port(address, port),
            supervisors=supervisors,
            run_id=secrets.token_hex(6),
            placement=placement,
        )
    finally:
        supervisors.close()
