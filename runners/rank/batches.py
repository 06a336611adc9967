"""One rank's batches of a workload; after the last it starts with the first again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from measurement.agent.ringside_agent.place import World
from measurement.errors import PlanError
from workloads import Workload
from workloads.optimizers import IsolatedRng


class Batches(Iterator[Any]):
    """One rank's batches, restarted when they end."""

    def __init__(
        self, workload: Workload, world: World, device: torch.device, *, seed: int | None = None
    ) -> None:
        """``seed``: of separate generators for their draws; None: they draw from the process's
        generators.
        """
        begin = partial(
            workload.batches, rank=world.rank, world_size=world.world_size, device=device
        )
        self._begin = begin if seed is None else partial(IsolatedRng(seed).iterate, begin)
        self._batches = self._begin()
        self._none = (
            f"batches() of workload '{type(workload).__name__}' gave none to rank {world.rank} of"
            f" {world.world_size}; give each rank at least one batch of local_batch_size"
            f" {workload.local_batch_size}"
        )
        self.restarts = 0
        """How often they ended and were restarted."""

    def __next__(self) -> Any:
        """Return the next batch; raises a ``PlanError`` if there is none at all."""
        for _ in range(2):
            with suppress(StopIteration):
                return next(self._batches)
            self.restarts += 1
            self._batches = self._begin()
        raise PlanError(self._none)
