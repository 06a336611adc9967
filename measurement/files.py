"""Files: written atomically, and read up to a limit."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import IO

LOCK_FILE = ".lock"
MAX_BYTES = 4 << 20
"""Bytes that a plan or a hostfile may have, against paths such as /dev/zero."""


def read_text(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """A text file in UTF-8 of at most ``max_bytes`` bytes, with or without a byte order mark.

    Raises:
        OSError: it cannot be read, or is larger.
        UnicodeDecodeError: it is not text in UTF-8.
    """
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(f"it has more than {max_bytes >> 20} MiB")
    return data.decode("utf-8-sig")


def write_whole(path: Path, content: bytes | str) -> None:
    """Write ``content`` to ``path`` atomically: a reader, or a crash, sees the old file or the new
    one, never a part.

    An existing file keeps its permissions; a new one has those of the umask.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), _mode(path))
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class LockedError(Exception):
    """Another process has locked the folder; the message says which."""


def lock_folder(folder: Path) -> IO[str]:
    """Lock a folder for this process until the returned file is closed, or the process ends.

    By a POSIX record lock, which also works between hosts on NFS. Where a file system has no locks,
    the folder counts as unlocked.

    Raises:
        LockedError: with who holds it.
    """
    file = (folder / LOCK_FILE).open("a+", encoding="utf-8", errors="replace")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.seek(0)
        holder = file.read(MAX_BYTES).strip() or "another process"
        file.close()
        raise LockedError(holder) from None
    except OSError:
        return file
    file.truncate(0)
    file.write(
        f"process {os.getpid()} on {socket.gethostname()} since"
        f" {time.strftime('%Y-%m-%d %H:%M:%S %Z')}\n"
    )
    file.flush()
    return file


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        mask = os.umask(0)  # there is no other way to read it
        os.umask(mask)
        return 0o666 & ~mask
