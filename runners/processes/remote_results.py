"""Files that ranks leave on their own host while hosts share no folder: logs, and replies. The driver fetches them over ssh.

Replies travel over the network. If one is lost because a rank or the network died right then, the block still counts if every rank
had finished it: each rank keeps its reply here before it sends it.

``python -m runners.processes.remote_results RUN_ID [--end]`` on a host sends its files as a tar archive on standard output;
with ``--end``, whatever is left of the run there is killed first, and the folder removed after.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import socket
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from runners.processes.run_processes import end_run

MAX_BYTES = 4 * 2**20
"""Only the end of each file is sent, so that a rank that floods its log does not hold up the driver."""


def folder_of(run_id: str) -> Path:
    """Return this host's folder for a run. Hosts that share /tmp have one each."""
    return Path(tempfile.gettempdir()) / f"ringside-{run_id}" / socket.gethostname()


def log_name(rank: int) -> str:
    """The name of a rank's log, here and in the results."""
    return f"rank-{rank}.log"


def timings_name(rank: int) -> str:
    """The name of the file that keeps a rank's replies."""
    return f"rank-{rank}.jsonl"


def append(folder: Path, rank: int, number: int, reply: str) -> None:
    """Keep a rank's reply (JSON) to its ``number``-th command."""
    with (folder / timings_name(rank)).open("a") as file:
        file.write(f"{number} {reply}\n")


def kept_replies(files: Mapping[str, bytes], *, number: int, world_size: int) -> list[bytes] | None:
    """Return every rank's reply (JSON) to a command, by rank; None unless all ranks had replied. Pure.

    Args:
        files: of all hosts, by name.
        number: which command of the arm.
        world_size: ranks of the arm.
    """
    found = [_reply_to(files.get(timings_name(rank), b""), number) for rank in range(world_size)]
    return None if None in found else [reply for reply in found if reply is not None]


def _reply_to(timings: bytes, number: int) -> bytes | None:
    """Lines without a line end were cut off when their rank died."""
    start = f"{number} ".encode()
    lines = [line for line in timings.splitlines(keepends=True) if line.endswith(b"\n")]
    return next((line.removeprefix(start).rstrip() for line in lines if line.startswith(start)), None)


def pack(run_id: str, *, end: bool) -> bytes:
    """Return this host's files of a run as an archive. With ``end``, end its processes and remove its folder."""
    if end:
        end_run(run_id)
    folder, archive = folder_of(run_id), io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for file in sorted(folder.glob("rank-*")):
            content = _end_of(file)
            entry = tarfile.TarInfo(file.name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    if end:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()  # unless another host shares it and is not done
    return archive.getvalue()


def unpack(archive: bytes) -> Mapping[str, bytes]:
    """The files of an archive by name."""
    found = {}
    with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for entry in tar:
            content = tar.extractfile(entry)
            found[Path(entry.name).name] = content.read() if content else b""
    return found


def _end_of(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - MAX_BYTES))
        return opened.read(MAX_BYTES)


if __name__ == "__main__":
    sys.stdout.buffer.write(pack(sys.argv[1], end="--end" in sys.argv[2:]))
