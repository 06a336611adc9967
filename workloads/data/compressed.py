"""Reads files that may be compressed. Their first bytes say how, since names may lack a suffix or have a wrong one."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO

from measurement.errors import PlanError
from workloads.data.folders import is_data, spelling

MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, RuntimeError, NotImplementedError)
"""What damaged archives raise; the last two come of zip files with a password, or of an unusual method."""


def compression_of(path: Path) -> str | None:
    """How a file is compressed by its first bytes; None if it is not.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        begin = file.read(6)
    return next((name for magic, name in MAGIC.items() if begin.startswith(magic)), None)


def read_whole(path: Path, *, most: int, member: str = "") -> bytearray:
    """Read a file, decompressed: at most ``most`` bytes and one more, by which a caller sees that there are more.

    ``member``: its name, by which it is found in an archive of several files.

    Raises:
        PlanError: the file is damaged or cannot be read, or the archive holds no such file.
    """
    try:
        if is_tar(path):
            return _from_tar(path, member, most)
        with _opened(path, member) as file:
            return bytearray(file.read(most + 1))
    except DAMAGE as error:
        raise PlanError(f"'{path}' cannot be read: {error or type(error).__name__}; fetch it again") from error


def is_tar(path: Path) -> bool:
    """Whether a file is a tar archive, by its name: one without a suffix of its own is no tape."""
    return path.name.lower().endswith((".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2"))


def _opened(path: Path, member: str) -> IO[bytes]:
    kind = compression_of(path)
    if kind == "zip":
        with zipfile.ZipFile(path) as archive:
            return archive.open(_only(path, archive.namelist(), member))
    openers = {"gzip": gzip.open, "xz": lzma.open, "bzip2": bz2.open}
    return openers[kind](path, "rb") if kind else path.open("rb")  # type: ignore[operator]


def _from_tar(path: Path, member: str, most: int) -> bytearray:
    with tarfile.open(path) as archive:
        for entry in archive:
            content = archive.extractfile(entry) if entry.isreg() and _is_named(entry.name, member) else None
            if content is not None:
                return bytearray(content.read(most + 1))
    raise PlanError(f"'{path}' holds no {member}; fetch it again")


def _only(path: Path, names: list[str], member: str) -> str:
    files = [name for name in names if not name.endswith("/") and all(map(is_data, name.split("/")))]
    wanted = [name for name in files if _is_named(name, member)] or files
    if len(wanted) != 1:
        raise PlanError(f"'{path}' holds {len(files)} files, where one is expected; unpack it")
    return wanted[0]


def _is_named(name: str, member: str) -> bool:
    *folders, last = name.split("/")
    return all(map(is_data, folders)) and is_data(last) and spelling(last) == spelling(member)
