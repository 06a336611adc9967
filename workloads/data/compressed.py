"""Reads files that may be packed. Their first bytes say how, since names may lack a suffix or have a wrong one."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from measurement.errors import PlanError
from workloads.data.folders import is_data, readable, spelling

MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
OPENERS: dict[str, Callable[..., Any]] = {"gzip": gzip.open, "xz": lzma.open, "bzip2": bz2.open}
TARS = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
"""Names of archives. One without a suffix of its own is none."""
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, RuntimeError, NotImplementedError)
"""What damaged archives raise; the last two come of zip files with a password, or of an unusual method."""


def compression_of(path: Path) -> str | None:
    """How a file is compressed by its first bytes; None if it is not.

    Raises:
        PlanError: it cannot be read.
    """
    with readable(path), path.open("rb") as file:
        begin = file.read(6)
    return next((name for magic, name in MAGIC.items() if begin.startswith(magic)), None)


@contextmanager
def unpacked(path: Path) -> Iterator[str]:
    """The path of a file; of a compressed one, that of a temporary copy.

    Raises:
        PlanError: the file is damaged or cannot be read.
    """
    if compression_of(path) is None:
        yield str(path)
        return
    with NamedTemporaryFile(prefix="ringside-") as copy:
        copy.write(read_whole(path, member=path.name))
        copy.flush()
        yield copy.name


def read_whole(path: Path, *, member: str) -> bytes:
    """Read a file, decompressed.

    ``member``: its name, by which it is found in an archive of several files.

    Raises:
        PlanError: the file is damaged or cannot be read, or the archive holds no such file.
    """
    kind = compression_of(path)
    try:
        if path.name.lower().endswith(TARS):
            return _from_tar(path, member)
        if kind == "zip":
            with zipfile.ZipFile(path) as archive:
                return archive.read(_only(path, archive.namelist(), member))
        with OPENERS[kind](path) if kind else path.open("rb") as file:
            content: bytes = file.read()
            return content
    except DAMAGE as error:
        raise PlanError(f"'{path}' cannot be read: {error or type(error).__name__}; fetch it again") from error


def _from_tar(path: Path, member: str) -> bytes:
    with tarfile.open(path) as archive:
        for entry in archive:
            content = archive.extractfile(entry) if entry.isreg() and _is_named(entry.name, member) else None
            if content is not None:
                return content.read()
    raise PlanError(f"'{path}' holds no {member}; fetch it again")


def _only(path: Path, names: Sequence[str], member: str) -> str:
    files = [name for name in names if not name.endswith("/") and all(map(is_data, name.split("/")))]
    wanted = [name for name in files if _is_named(name, member)] or files
    if len(wanted) != 1:
        raise PlanError(f"'{path}' holds {len(files)} files, where one is expected; unpack it")
    return wanted[0]


def _is_named(name: str, member: str) -> bool:
    parts = name.split("/")
    return all(map(is_data, parts)) and spelling(parts[-1]) == spelling(member)
