"""How fast this host's file system reads the files of a data set, whole and without decoding them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measurement.records.loader_record import FilesRead, StorageReads

MOST_FILES = 5000
"""That are read in one order. Fewer where the time is over before."""


def read_files(files: Sequence[Path], *, readers: int, seconds: float, seed: int) -> StorageReads:
    """Read files in the order of their names, then others at random, each for so many seconds or until there are no more.

    The kernel is asked to forget each file first (``POSIX_FADV_DONTNEED``), so that it comes from where it is stored; caches of the
    device or of a file server are beyond reach.

    Args:
        files: of the whole data set, one at least.
        readers: threads that read side by side.
        seconds: of each order.
        seed: of the random order.

    Raises:
        OSError: a file cannot be read.
    """
    rng = random.Random(seed)
    drawn = rng.sample(files, min(2 * MOST_FILES, len(files)))
    half = (len(drawn) + 1) // 2
    in_order, at_random = sorted(drawn[half:] or drawn), drawn[:half]
    for path in drawn:
        _forget(path)
    return StorageReads(
        readers=readers,
        in_order=_read(in_order, readers=readers, seconds=seconds),
        at_random=_read(at_random, readers=readers, seconds=seconds),
    )


def _forget(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(opened)


def _read(files: Sequence[Path], *, readers: int, seconds: float) -> FilesRead:
    began = time.perf_counter()

    def read(path: Path) -> int | None:
        return len(path.read_bytes()) if time.perf_counter() - began < seconds else None

    with ThreadPoolExecutor(readers) as pool:
        sizes = [size for size in pool.map(read, files) if size is not None]
    return FilesRead(files=len(sizes), bytes=sum(sizes), seconds=time.perf_counter() - began)
