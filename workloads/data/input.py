"""The input pipeline of all workloads with real data: from samples to batches.

In training, each epoch has another order, ranks have disjoint shards, and every rank has the same
number of equal batches. In evaluation, each sample is read once over all ranks, in order, and none
is repeated to fill a batch. Batches depend on seed, epoch and rank, and random transforms on seed,
epoch and sample. Neither depends on the number of loader processes.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from measurement.errors import PlanError, RingsideError
from measurement.plans.settings import PlanOptions

Sample = tuple[Any, Any]
"""A sample and its label. When it is batched, the sample is a tensor."""
Transform = Callable[[Any], Any]


class InputOptions(PlanOptions):
    """Options of every workload with real data: how batches are loaded."""

    loader_workers: int = Field(default=0, ge=0)
    """Loader processes per rank. 0: the rank loads its batches itself."""
    prefetch_factor: int = Field(default=2, ge=1)
    """Batches that each loader process loads ahead."""
    loader_start_method: Literal["fork", "forkserver", "spawn"] | None = None
    """How loader processes are started. None: Python's default. Libraries with threads may not
    survive a fork."""
    pin_memory: bool | None = None
    """Keep batches in pinned memory. None: on where there is a GPU."""


class Transformed(Dataset[Sample]):
    """Samples with a deterministic transform."""

    def __init__(self, samples: Dataset[Sample], transform: Transform) -> None:
        self.samples = samples
        self.transform = transform

    def __len__(self) -> int:
        return length(self.samples)

    def __getitem__(self, index: int) -> Sample:
        sample, label = self.samples[index]
        return self.transform(sample), label


class Augmented(Transformed):
    """Samples with a random transform, whose random numbers depend on (seed, epoch, index) only.

    A sample is therefore the same for any number of ranks and loader processes.
    Indexed by (epoch, index).
    """

    def __init__(self, samples: Dataset[Sample], transform: Transform, *, seed: int) -> None:
        super().__init__(samples, transform)
        self.seed = seed

    def __getitem__(self, key: tuple[int, int]) -> Sample:  # type: ignore[override]
        epoch, index = key
        # torchvision's transforms draw from torch's own generator
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(zlib.crc32(f"{self.seed}/{epoch}/{index}".encode()))
            return super().__getitem__(index)


class EpochSampler(DistributedSampler[Any]):
    """Gives ``Augmented`` the epoch with each index.

    Loader processes live for several epochs, and ``set_epoch`` does not reach them.
    """

    def __iter__(self) -> Iterator[Any]:
        indices, epoch = super().__iter__(), self.epoch
        return (
            ((epoch, index) for index in indices)
            if isinstance(self.dataset, Augmented)
            else indices
        )


@dataclass(frozen=True, kw_only=True)
class Input:
    """One rank's share of the data, on its device."""

    options: InputOptions
    local_batch_size: int
    seed: int
    rank: int
    world_size: int
    device: torch.device

    def epochs(self, dataset: Dataset[Sample]) -> Epochs:
        """Return the epochs of a dataset.

        Samples that do not fill a batch on every rank are left out.

        Raises:
            PlanError: there are too few samples for one batch on every rank. During iteration: a
                sample cannot be read.
        """
        self.batches_per_epoch(dataset)
        sampler = EpochSampler(
            dataset,
            num_replicas=self.world_size,
            rank=self.rank,
            shuffle=True,
            seed=self.seed,
            drop_last=True,
        )
        loader = self._loader(
            dataset,
            sampler=sampler,
            drop_last=True,
            persistent_workers=self.options.loader_workers > 0,
        )
        return Epochs(source=self, loader=loader, sampler=sampler)

    def batches_per_epoch(self, dataset: Dataset[Sample]) -> int:
        """Return how many batches each rank has in an epoch.

        Raises:
            PlanError: there are too few samples for one batch on every rank.
        """
        count = length(dataset) // (self.local_batch_size * self.world_size)
        if count == 0:
            raise PlanError(
                f"local_batch_size {self.local_batch_size} x {self.world_size} ranks is more than"
                f" the {length(dataset)} training samples; use a smaller local_batch_size"
            )
        return count

    def evaluation(self, dataset: Dataset[Sample]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every ``world_size``-th sample, in batches.

        Ranks may differ by one sample, and so by one batch.
        """
        return self.on_device(
            self._loader(dataset, sampler=range(self.rank, length(dataset), self.world_size))
        )

    def _loader(self, dataset: Dataset[Sample], **how: Any) -> DataLoader[Sample]:
        has_workers = self.options.loader_workers > 0
        return DataLoader(
            dataset,
            batch_size=self.local_batch_size,
            num_workers=self.options.loader_workers,
            prefetch_factor=self.options.prefetch_factor if has_workers else None,
            multiprocessing_context=self.options.loader_start_method if has_workers else None,
            pin_memory=(
                self.device.type == "cuda"
                if self.options.pin_memory is None
                else self.options.pin_memory
            ),
            # the default generator belongs to the model
            generator=torch.Generator().manual_seed(self.seed),
            **how,
        )

    def on_device(self, loader: DataLoader[Sample]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a loader's batches on the rank's device."""
        try:
            for inputs, labels in loader:
                yield (
                    inputs.to(self.device, non_blocking=True),
                    labels.to(self.device, non_blocking=True),
                )
        except RingsideError as error:
            raise type(error)(_last_line(error)) from error


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """One rank's shard of the training set, epoch by epoch, through one loader."""

    source: Input
    loader: DataLoader[Sample]
    sampler: EpochSampler

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one epoch. Only one such iteration may be under way."""
        self.sampler.set_epoch(epoch)
        yield from self.source.on_device(self.loader)

    def endless(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield epoch after epoch, without end."""
        for epoch in itertools.count():
            yield from self.batches(epoch)


def length(dataset: Dataset[Sample]) -> int:
    """Count the samples; ``Dataset`` itself declares no ``__len__``."""
    return len(dataset)  # type: ignore[arg-type]


def _last_line(error: RingsideError) -> str:
    """Return the message without the traceback that a loader process puts before it."""
    return (
        str(error)
        .rstrip()
        .splitlines()[-1]
        .removeprefix(f"{type(error).__module__}.{type(error).__name__}: ")
    )
