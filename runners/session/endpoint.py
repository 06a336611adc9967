"""Where the ranks of all arms find the driver: its store, its supervisor server and its key.

By the key, driver, supervisors and ranks authenticate each other. They read it from a file that
only the user can read. It is never in a command line or a shell's environment, which ``ps`` shows.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from measurement.addresses import listen, with_port
from measurement.errors import LaunchError
from runners.hosts.placement import Placement
from runners.processes import remote
from runners.processes.driver_watch import ended_with_driver
from runners.processes.local import remove_left_folders
from runners.processes.supervisor_server import SupervisorServer

KEY_PREFIX = "ringside-key-"
PUT_KEY = (
    'umask 077 && mkdir -p -- "$1" && cat > "$1/key" && { test -s "$1/key" || { echo "its shell'
    ' reads standard input, see ~/.bashrc there" >&2; exit 1; }; }'
)
REMOVE_KEY = 'rm -rf -- "$1"'
KEY_TIMEOUT_S = 20.0


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
    with shared_key(placement.remote) as key_file, ExitStack() as stack:
        stack.enter_context(ended_with_driver(run_id, placement.remote))
        supervisors = SupervisorServer(address=address, key=key_file.read_text(encoding="utf-8"))
        stack.callback(supervisors.close)
        yield DriverEndpoint(
            store_address=stack.enter_context(_serve_store(address)) if has_store else "",
            supervisors=supervisors,
            key_file=key_file,
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


@contextmanager
def shared_key(hosts: Sequence[str]) -> Iterator[Path]:
    """Make a key and store it here and on other hosts while the context lasts, in a new folder with
    a random name; yields its path, the same on every host.

    It is 32 random bytes in hexadecimal digits.

    Keys that killed drivers have left are removed.

    Raises:
        LaunchError: a host cannot be reached.
    """
    remove_left_folders(Path(tempfile.gettempdir()), KEY_PREFIX)
    prefix = f"{KEY_PREFIX}{socket.gethostname()}-{os.getpid()}-"
    path, key = Path(tempfile.mkdtemp(prefix=prefix)) / "key", secrets.token_hex(32).encode()

    def everywhere(script: str) -> None:
        argv = ["sh", "-c", script, "sh", str(path.parent)]
        remote.run_on(hosts, argv, timeout_s=KEY_TIMEOUT_S, stdin=key)

    try:
        path.touch(mode=0o600)  # in a folder that is the user's alone
        path.write_bytes(key)
        everywhere(PUT_KEY)
        yield path
    finally:
        # a lost host keeps the key, which is of no use after the comparison
        with contextlib.suppress(LaunchError):
            everywhere(REMOVE_KEY)
        shutil.rmtree(path.parent, ignore_errors=True)
