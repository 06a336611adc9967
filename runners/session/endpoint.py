"""Where the ranks of all arms find the driver: its store and its supervisor server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from measurement.addresses import listen, with_port
from runners.hosts.placement import Placement
from runners.processes.driver_watch import ended_with_driver
from runners.processes.key_file import shared_key
from runners.processes.supervisor_server import SupervisorServer


@dataclass(frozen=True, kw_only=True)
class DriverEndpoint:
    """Where the ranks of all arms find the driver."""

    store_address: str
    """The ``TCPStore`` of the libraries' process groups. Empty: the arms are scripts, which need
    none."""
    supervisors: SupervisorServer
    key_file: Path
    """The path of the comparison's key on every host."""
    run_id: str
    """With which the run id of each start begins, before a hyphen."""
    placement: Placement


@contextmanager
def open_endpoint(placement: Placement, *, has_store: bool) -> Iterator[DriverEndpoint]:
    """Serve the supervisors' connections, and a store if asked; on loopback if all ranks are on
    this host.

    What is started with its run id ends with this process.
    """
    address, run_id = placement.driver_address, secrets.token_hex(6)
    with shared_key(placement.everywhere) as key_file, ExitStack() as stack:
        stack.enter_context(ended_with_driver(run_id, placement.everywhere))
        supervisors = SupervisorServer(address=address, key=key_file.key)
        stack.callback(supervisors.close)
        yield DriverEndpoint(
            store_address=stack.enter_context(_serve_store(address)) if has_store else "",
            supervisors=supervisors,
            key_file=key_file.path,
            run_id=run_id,
            placement=placement,
        )


@contextmanager
def _serve_store(address: str) -> Iterator[str]:
    """Serve a ``TCPStore``; yields its address."""
    from torch.distributed import TCPStore

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
        yield with_port(address, port)
    finally:
        del store  # it ends with its last reference
