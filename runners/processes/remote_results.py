"""What each rank leaves on its own host while hosts share no files: its log, and what it timed; fetched by the driver over ssh.

The replies of a block come over the network. Where one is lost, because a rank or the network died right then, the block still
counts if every rank had finished it: each rank writes what it timed here before it replies.

``python -m runners.spool MARK [--end]`` on a host sends its files as a tar archive on standard output; with ``--end``, whatever
is left of the run there is killed first, and the folder removed after.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import socket
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runners.marked import end_marked

MAX_BYTES = 4 * 2**20
"""Of each file, its end: a rank that floods its log must not hold up the driver."""


def folder_of(mark: str) -> Path:
    """This host's folder for a run; hosts that share their temporary files do not share it."""
    return Path(tempfile.gettempdir()) / f"ringside-{mark}" / socket.gethostname()


def log_name(rank: int) -> str:
    """The name of a rank's log, here and in the results."""
    return f"rank-{rank}.log"


def timings_name(rank: int) -> str:
    """The name of what a rank timed."""
    return f"rank-{rank}.jsonl"


def append(folder: Path, rank: int, number: int, report: str) -> None:
    """Keep a rank's report (JSON) on its ``number``-th command."""
    with (folder / timings_name(rank)).open("a") as file:
        file.write(f'{{"number": {number}, "report": {report}}}\n')


def report_on(timings: bytes, number: int) -> dict[str, Any] | None:
    """What a rank kept of its ``number``-th command; None where it did not come so far."""
    for line in timings.splitlines():
        with contextlib.suppress(ValueError):  # the last line may have been cut off with its rank
            found = json.loads(line)
            if found["number"] == number:
                return dict(found["report"])
    return None


def pack(mark: str, *, end: bool) -> bytes:
    """This host's files of a run, as an archive; with ``end``, nothing of the run stays here."""
    if end:
        end_marked(mark)
    folder, archive = folder_of(mark), io.BytesIO()
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
