"""Where the ranks of all arms find the driver: its store and its supervisor server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from measurement.addresses import listen, with_port
from runners.hosts.placement import Placement
from runners.processes.key_file import shared_key
from runners.processes.supervisor_server import SupervisorServer
from runners.protocol.sealed_store import SealedStore


@dataclass(frozen=True, kw_only=True)
class DriverEndpoint:
    """Where the ranks of all arms find the driver."""

    store: SealedStore
    """Upon the ``TCPStore`` that the driver serves."""
    store_address: str
    supervisors: SupervisorServer
    key_file: Path
    """Of the comparison's key, on every host."""
    run_id: str
    placement: Placement


@contextmanager
def open_endpoint(placement: Placement) -> Iterator[DriverEndpoint]:
    """Serve the store and the supervisor connections; on loopback if all ranks are on this host."""
    from torch.distributed import TCPStore

    address = placement.driver_address
    with shared_key(placement.remote) as key_file:
        supervisors = SupervisorServer(address=address, key=key_file.key)
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
                store=SealedStore(store, key=key_file.key),
                store_address=with_port(address, port),
                supervisors=supervisors,
                key_file=key_file.path,
                run_id=secrets.token_hex(6),
                placement=placement,
            )
        finally:
            supervisors.close()
