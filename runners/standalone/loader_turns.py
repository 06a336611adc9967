"""Times the loaders of one rank: batches as training gets them, for several numbers of loader workers, without a model."""

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
from measurement.records.loader_record import LoaderTurn
from measurement.world import World
from runners.planning.workload import WorkloadSetup
from workloads import Workload

WARMUP_BATCHES = 2
"""For each loader worker; the same number if there are none."""


def require_loader(setup: WorkloadSetup) -> None:
    """Refuse a workload that has no loader workers.

    Raises:
        PlanError: it has no option ``loader_workers``.
    """
    if "loader_workers" not in setup.workload.Options.model_fields:
        raise PlanError(
            f"workload '{setup.reference}' has no option loader_workers, so there is no loader to measure; "
            "choose one that reads data, such as 'mnist', 'cifar10', 'imagenet' or 'language_model'"
        )


class Loaders:
    """Makes a new loader for every turn. The data set is read once for all of them."""

    def __init__(self, workload: Workload, *, backend: Backend, world: World, device: torch.device) -> None:
        self._workload = workload
        self._backend = backend
        self._world = world
        self._device = device
        next(workload.batches(rank=world.rank, world_size=world.world_size, device=device))  # reads the data set

    def measure(self, counts: Sequence[int], *, rounds: int, seconds: float) -> list[LoaderTurn]:
        """Measure every number of workers once a round, in a random order that is the same on all ranks. Collective."""
        rng = random.Random(self._workload.seed)
        turns = [(number, workers) for number in range(rounds) for workers in rng.sample(counts, len(counts))]
        warnings.filterwarnings(
            "ignore", message="This DataLoader will create"
        )  # more than cores: whether that helps is asked here
        return [self._turn(number, workers, seconds) for number, workers in turns]

    def _turn(self, number: int, workers: int, seconds: float) -> LoaderTurn:
        """Warm the loader up, wait for all ranks, use up the batches prefetched meanwhile, then count. Collective."""
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
        """Return how many samples were loaded and the seconds that took, at least ``seconds``.

        Counts equally many batches from every worker. Workers finish their batches at about the same time; to stop in the middle of
        such a burst would count the wait before it but not its batches.
        """
        samples, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            samples += sum(self._workload.count_samples(next(batches)) for _ in range(each))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return samples, time.perf_counter() - began

    def _batches(self, workers: int) -> Iterator[Any]:
        """Return batches with this number of workers. A shallow copy of the workload shares the data set that was read."""
        own = copy.copy(self._workload)
        own.options = own.options.model_copy(update={"loader_workers": workers})
        return own.batches(rank=self._world.rank, world_size=self._world.world_size, device=self._device)


def _use(batches: Iterator[Any], count: int) -> None:
    for _ in itertools.islice(batches, count):
        pass
