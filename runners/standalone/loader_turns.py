"""The loaders of one rank under the clock: batches as training gets them, for several numbers of loader workers, and no model."""

from __future__ import annotations

import copy
import gc
import itertools
import random
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from backends import Backend
from measurement.errors import PlanError
from measurement.loading import LoaderTurn
from measurement.world import World
from runners.planning import WorkloadSetup
from workloads import Workload

WARMUP_BATCHES = 2
"""Of every loader worker; 2 as well where there are none."""


def require_loader(setup: WorkloadSetup) -> None:
    """Refuse a workload that no processes load for.

    Raises:
        PlanError: it has no option ``loader_workers``.
    """
    if "loader_workers" not in setup.workload.Options.model_fields:
        raise PlanError(
            f"workload '{setup.reference}' has no option loader_workers, so there is no loader to measure; "
            "choose one that reads data, such as 'mnist', 'cifar10', 'imagenet' or 'language_model'"
        )


class Loaders:
    """One rank's loaders, a new one for every turn; the data set is read once for all of them."""

    def __init__(self, workload: Workload, *, backend: Backend, world: World, device: torch.device) -> None:
        self._workload = workload
        self._backend = backend
        self._world = world
        self._device = device
        next(workload.batches(rank=world.rank, world_size=world.world_size, device=device))  # reads the data set

    def measure(self, counts: Sequence[int], *, rounds: int, seconds: float) -> list[LoaderTurn]:
        """Every number of workers once in each round, in random order, the same on all ranks. Collective."""
        chance = random.Random(self._workload.seed)
        turns = [(number, workers) for number in range(rounds) for workers in chance.sample(counts, len(counts))]
        warnings.filterwarnings(
            "ignore", message="This DataLoader will create"
        )  # more than cores: whether that helps is asked here
        return [self._turn(number, workers, seconds) for number, workers in turns]

    def _turn(self, number: int, workers: int, seconds: float) -> LoaderTurn:
        """Load untimed until the loader runs, meet, use up what was loaded meanwhile, then count. Collective."""
        batches = self._batches(workers)
        stock = workers * getattr(self._workload.options, "prefetch_factor", WARMUP_BATCHES)
        _use(batches, max(stock, WARMUP_BATCHES * max(workers, 1)))
        self._backend.barrier()
        _use(batches, stock)
        samples, took = self._count(batches, max(workers, 1), seconds)
        self._backend.barrier()
        del batches
        gc.collect()  # the loader's processes end before the next turn
        return LoaderTurn(
            round=number, rank=self._world.rank, host=socket.gethostname(), workers=workers, samples=samples, seconds=took
        )

    def _count(self, batches: Iterator[Any], each: int, seconds: float) -> tuple[int, float]:
        """Samples in whole batches, and the seconds they took: at least so many.

        Always as many batches from every worker: they end theirs at about the same time, and to stop within such a burst would
        count its waiting and not what came of it.
        """
        samples, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            samples += sum(self._workload.count_samples(next(batches)) for _ in range(each))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return samples, time.perf_counter() - began

    def _batches(self, workers: int) -> Iterator[Any]:
        """Of the same workload with another number of workers; a shallow copy shares the data set that has been read."""
        own = copy.copy(self._workload)
        own.options = own.options.model_copy(update={"loader_workers": workers})
        return own.batches(rank=self._world.rank, world_size=self._world.world_size, device=self._device)


def _use(batches: Iterator[Any], count: int) -> None:
    for _ in itertools.islice(batches, count):
        pass
