"""The key of a comparison, by which its driver, supervisors and ranks authenticate each other.

They read it from a file that only the user can read. It is never in a command line or a shell's
environment, which ``ps`` shows.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from measurement.errors import LaunchError
from runners.processes import remote
from runners.processes.run_processes import remove_left_folders

PREFIX = "ringside-key-"
PUT = (
    'umask 077 && mkdir -p -- "$1" && cat > "$1/key" && { test -s "$1/key" || { echo "its shell'
    ' reads standard input, see ~/.bashrc there" >&2; exit 1; }; }'
)
REMOVE = 'rm -rf -- "$1"'
TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class KeyFile:
    """A key, and its path on every host."""

    key: str = field(repr=False)
    """32 random bytes in hexadecimal digits."""
    path: Path


@contextmanager
def shared_key(hosts: Sequence[str]) -> Iterator[KeyFile]:
    """Make a key and store it here and on other hosts while the context lasts, in a new folder with
    a random name.

    Keys that killed drivers have left are removed.

    Raises:
        LaunchError: a host cannot be reached.
    """
    remove_left_folders(Path(tempfile.gettempdir()), PREFIX)
    prefix = f"{PREFIX}{socket.gethostname()}-{os.getpid()}-"
    made = KeyFile(key=secrets.token_hex(32), path=Path(tempfile.mkdtemp(prefix=prefix)) / "key")
    try:
        with os.fdopen(
            os.open(made.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(made.key)
        _everywhere(hosts, PUT, made)
        yield made
    finally:
        # a lost host keeps the key, which is of no use after the comparison
        with contextlib.suppress(LaunchError):
            _everywhere(hosts, REMOVE, made)
        shutil.rmtree(made.path.parent, ignore_errors=True)


def _everywhere(hosts: Sequence[str], script: str, key: KeyFile) -> None:
    remote.run_on(
        hosts,
        ["sh", "-c", script, "sh", str(key.path.parent)],
        timeout_s=TIMEOUT_S,
        stdin=key.key.encode(),
    )
