"""Times the loaders of one rank: batches as training gets them, for several numbers of loader workers, without a model.

Times how fast its host's file system reads the files of a data set, too, whole and without decoding them.
"""

from __future__ import annotations

import copy
import gc
import itertools
import os
import random
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from backends import Backend
from measurement.errors import PlanError
from measurement.records.loader_record import FilesRead, LoaderTurn, StorageReads
from measurement.world import World
from runners.planning.workload import WorkloadSetup
from workloads import Workload

WARMUP_BATCHES = 2
"""For each loader worker; the same number if there are none."""
MOST_FILES = 5000
"""That are read in one order. Fewer where the time is over before."""


def require_loader(setup: WorkloadSetup) -> None:
    """Refuse a workload that has no loader workers, with a ``PlanError``."""
    if "loader_workers" not in setup.workload.Options.model_fields:
        raise PlanError(
            f"workload '{setup.reference}' has no option loader_workers, so there is no loader to measure; "
            "choose one that reads data, such as 'mnist', 'cifar10', 'imagenet' or 'language_model'"
        )


@dataclass(kw_only=True, eq=False)
class Loaders:
    """Makes a new loader for every turn. The data set is read once for all of them."""

    workload: Workload
    backend: Backend
    world: World
    device: torch.device

    def __post_init__(self) -> None:
        next(self._batches_of(self.workload))  # reads the data set

    def measure(self, counts: Sequence[int], *, rounds: int, seconds: float) -> list[LoaderTurn]:
        """Measure every number of workers once a round, in a random order that is the same on all ranks. Collective."""
        rng = random.Random(self.workload.seed)
        turns = [(number, workers) for number in range(rounds) for workers in rng.sample(counts, len(counts))]
        warnings.filterwarnings(
            "ignore", message="This DataLoader will create"
        )  # more than cores: whether that helps is asked here
        return [self._turn(number, workers, seconds) for number, workers in turns]

    def _turn(self, number: int, workers: int, seconds: float) -> LoaderTurn:
        """Warm the loader up, wait for all ranks, use up the batches prefetched meanwhile, then count. Collective."""
        batches = self._batches(workers)
        stock = workers * getattr(self.workload.options, "prefetch_factor", WARMUP_BATCHES)
        _use(batches, max(stock, WARMUP_BATCHES * max(workers, 1)))
        self.backend.barrier()
        _use(batches, stock)
        samples, took = self._count(batches, max(workers, 1), seconds)
        self.backend.barrier()
        del batches
        gc.collect()  # the loader's processes end before the next turn
        return LoaderTurn(
            round=number, rank=self.world.rank, host=socket.gethostname(), workers=workers, samples=samples, seconds=took
        )

    def _count(self, batches: Iterator[Any], each: int, seconds: float) -> tuple[int, float]:
        """Return how many samples were loaded and the seconds that took, at least ``seconds``.

        Counts equally many batches from every worker. Workers finish their batches at about the same time; to stop in the middle of
        such a burst would count the wait before it but not its batches.
        """
        samples, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            samples += sum(self.workload.count_samples(next(batches)) for _ in range(each))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return samples, time.perf_counter() - began

    def _batches(self, workers: int) -> Iterator[Any]:
        """Return batches with this number of workers. A shallow copy of the workload shares the data set that was read."""
        own = copy.copy(self.workload)
        own.options = own.options.model_copy(update={"loader_workers": workers})
        return self._batches_of(own)

    def _batches_of(self, workload: Workload) -> Iterator[Any]:
        return workload.batches(rank=self.world.rank, world_size=self.world.world_size, device=self.device)


def _use(batches: Iterator[Any], count: int) -> None:
    for _ in itertools.islice(batches, count):
        pass


def read_files(files: Sequence[Path], *, readers: int, seconds: float, seed: int) -> StorageReads:
    """Read files in the order of their names, then others at random, each for so many seconds or until there are no more.

    The kernel is asked to forget each file first (``POSIX_FADV_DONTNEED``), so that it comes from where it is stored; caches of the
    device or of a file server are beyond reach.

    ``files``: of the whole data set, one at least. ``readers``: threads that read side by side. ``seconds``: of each order.

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
