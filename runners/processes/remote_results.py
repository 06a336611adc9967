"""Logs that ranks write on their host if hosts share no folder. The driver fetches them over ssh.

``python -m runners.processes.remote_results RUN_ID [--end]`` on a host answers with its files as a
tar archive. With ``--end`` it first kills the run's processes there, and then removes the folder.

The folder is in /tmp, where other users write, too. So only its owner can read it, only files with
the names that ranks use are sent, and links are not followed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import socket
import stat
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from measurement.errors import LaunchError
from runners.processes.local import end_run
from runners.processes.remote import give

MAX_BYTES = 4 * 2**20
"""Only the end of each file is sent, so that a rank that floods its log does not delay the
driver."""

NAME = re.compile(r"rank-[0-9]{1,9}\.log")
"""Names of the files that are fetched; nothing else is."""


def folder_of(run_id: str) -> Path:
    """Return this host's folder for a run. Hosts that share /tmp have one each."""
    return Path(tempfile.gettempdir()) / f"ringside-{run_id}" / socket.gethostname()


def make_folder(run_id: str) -> Path:
    """Make this host's folder for a run, unless another rank has made it.

    Only the user can read and write it.

    Raises:
        LaunchError: the folder belongs to another user, is open to others, or is no folder.
    """
    folder = folder_of(run_id)
    for part in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):
            part.mkdir(mode=0o700)
        if not _is_own(part):
            raise LaunchError(
                f"'{part}' on {socket.gethostname()} is no folder of this user alone, and ranks"
                " would write their logs there; see who made it (ls -ld), remove it, or set TMPDIR"
                " to a folder of your own"
            )
    return folder


def _is_own(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o077
    )


def log_name(rank: int) -> str:
    """The name of a rank's log, here and in the results."""
    return f"rank-{rank}.log"


def pack(run_id: str, *, end: bool) -> bytes:
    """Return this host's files of a run as an archive.

    With ``end``, end its processes and remove its folder.
    """
    if end:
        end_run(run_id)
    folder, archive = folder_of(run_id), io.BytesIO()
    is_own = _is_own(folder.parent) and _is_own(folder)
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for file in sorted(folder.iterdir()) if is_own else ():
            content = _end_of(file) if NAME.fullmatch(file.name) else None
            if content is not None:
                entry = tarfile.TarInfo(file.name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    if end and is_own:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # unless another host shares it and is not done
    return archive.getvalue()


def unpack(archive: bytes) -> Mapping[str, bytes]:
    """The files of an archive by name: those with the names that ranks use, and no links."""
    files = {}
    with (
        contextlib.suppress(tarfile.TarError),
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar,
    ):
        for entry in tar:
            content = (
                tar.extractfile(entry) if entry.isreg() and NAME.fullmatch(entry.name) else None
            )
            if content is not None:
                files[entry.name] = content.read(MAX_BYTES)
    return files


def _end_of(file: Path) -> bytes | None:
    """The end of a file; None if it is a link, has another hard link, or is no file."""
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            return None
        return os.pread(opened, MAX_BYTES, max(0, status.st_size - MAX_BYTES))
    finally:
        os.close(opened)


if __name__ == "__main__":
    give(pack(sys.argv[1], end="--end" in sys.argv[2:]))
