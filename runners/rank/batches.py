"""One rank's batches of a workload: from the first on again where it has no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from measurement.agent.ringside_agent.place import World
from measurement.errors import PlanError
from workloads import Workload
from workloads.optimizers import OwnDraws
from workloads.tensors import leaves_in


class Batches(Iterator[Any]):
    """One rank's batches, begun anew where they end."""

    def __init__(self, workload: Workload, world: World, device: torch.device, *, seed: int | None = None) -> None:
        """``seed``: their draws begin there and leave the process's generators alone; None: they draw from these."""
        begin = partial(workload.batches, rank=world.rank, world_size=world.world_size, device=device)
        self._begin = begin if seed is None else partial(OwnDraws(seed).iterate, begin)
        self._batches, self._workload = self._begin(), type(workload).__name__
        self._none = (
            f"batches() of workload '{self._workload}' gave none to rank {world.rank} of {world.world_size}; "
            f"give each rank one batch of local_batch_size {workload.local_batch_size} at least"
        )
        self.restarts = 0
        """How often they ended and were begun anew."""

    def repeat(self, count: int) -> None:
        """Load the next batches, and give these again and again. Their loader ends, so that it takes no core.

        Raises:
            PlanError: batches are iterators, which can be used once.
        """
        kept = [next(self) for _ in range(count)]
        if any(isinstance(batch, Iterator) for batch in kept):
            raise PlanError(
                f"batches() of workload '{self._workload}' gives iterators, which end with their first use; give lists or tensors, "
                "or leave input: synthetic out"
            )
        self._batches = self._again(kept)

    def _again(self, kept: Sequence[Any]) -> Iterator[Any]:
        """Yield batches in turn; raises a ``PlanError`` where a step has changed them."""
        tensors = [leaf for batch in kept for _, leaf in leaves_in(batch) if isinstance(leaf, torch.Tensor)]
        before = [tensor._version for tensor in tensors]
        while [tensor._version for tensor in tensors] == before:
            yield from kept
        raise PlanError(
            f"a step of workload '{self._workload}' changes its batch in place, which input: synthetic repeats; have compute_loss "
            "change a copy, or leave input: synthetic out"
        )

    def __next__(self) -> Any:
        """Return the next batch; raises a ``PlanError`` where there is none at all."""
        try:
            return next(self._batches)
        except StopIteration:
            self.restarts += 1
            self._batches = self._begin()
        try:
            return next(self._batches)
        except StopIteration:
            raise PlanError(self._none) from None
