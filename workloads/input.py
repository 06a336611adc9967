"""From samples to batches: the input pipeline that all workloads with real data share.

Training: every epoch in another order, the ranks' shards apart, the same number of equal steps on every rank. Evaluation:
every sample exactly once over all ranks, in order, nothing repeated to fill up. Both depend on seed, epoch and rank alone,
random transforms too, however many processes load.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from measurement.errors import PlanError, RingsideError

Sample = tuple[Any, Any]
"""Whatever a transform takes and its label; a tensor and its label by the time it is batched."""
Transform = Callable[[Any], Any]


class InputOptions(BaseModel):
    """How batches are loaded; options of every workload with real data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    loader_workers: int = Field(default=0, ge=0)
    """Processes that load batches, per rank; 0: the rank itself."""
    prefetch_factor: int = Field(default=2, ge=1)
    """Batches that each of these processes loads ahead."""


class Transformed(Dataset[Sample]):
    """Samples with a fixed transform."""

    def __init__(self, samples: Dataset[Sample], transform: Transform) -> None:
        self.samples = samples
        self.transform = transform

    def __len__(self) -> int:
        return length(self.samples)

    def __getitem__(self, index: int) -> Sample:
        sample, label = self.samples[index]
        return self.transform(sample), label


class Augmented(Transformed):
    """Samples transformed at random, each by numbers drawn from (seed, epoch, index) and nothing else.

    So a sample looks the same however many ranks and loader processes there are, and wherever in an epoch one begins.
    Indexed by (epoch, index).
    """

    def __init__(self, samples: Dataset[Sample], transform: Transform, *, seed: int) -> None:
        super().__init__(samples, transform)
        self.seed = seed

    def __getitem__(self, key: tuple[int, int]) -> Sample:  # type: ignore[override]
        epoch, index = key
        with torch.random.fork_rng(devices=[]):  # torchvision's transforms draw from torch's own generator
            torch.default_generator.manual_seed(zlib.crc32(f"{self.seed}/{epoch}/{index}".encode()))
            return super().__getitem__(index)


class EpochSampler(DistributedSampler[Any]):
    """Begins anywhere in an epoch, and tells ``Augmented`` the epoch with each index.

    Loader processes outlive epochs and hear of no ``set_epoch``.
    """

    first = 0
    """How many of this rank's samples are passed over."""

    def __iter__(self) -> Iterator[Any]:
        indices = itertools.islice(super().__iter__(), self.first, None)
        epoch = self.epoch
        return ((epoch, index) for index in indices) if isinstance(self.dataset, Augmented) else indices


@dataclass(frozen=True, kw_only=True)
class Input:
    """One rank's share of the data, on its device."""

    options: InputOptions
    local_batch_size: int
    seed: int
    rank: int
    world_size: int
    device: torch.device

    def training(self, dataset: Dataset[Sample]) -> Epochs:
        """The epochs of a dataset; what does not fill a batch on every rank is left out.

        Raises:
            PlanError: there are too few samples for one batch, or, while it iterates, one cannot be read.
        """
        self.batches_per_epoch(dataset)
        sampler = EpochSampler(dataset, num_replicas=self.world_size, rank=self.rank, shuffle=True, seed=self.seed, drop_last=True)
        many = self.options.loader_workers > 0
        loader = self._loader(dataset, sampler=sampler, drop_last=True, persistent_workers=many)
        return Epochs(source=self, loader=loader, sampler=sampler)

    def batches_per_epoch(self, dataset: Dataset[Sample]) -> int:
        """On every rank.

        Raises:
            PlanError: there are too few samples for one.
        """
        count = length(dataset) // (self.local_batch_size * self.world_size)
        if count == 0:
            raise PlanError(
                f"local_batch_size {self.local_batch_size} x {self.world_size} ranks is more than the "
                f"{length(dataset)} training samples; use a smaller local_batch_size"
            )
        return count

    def evaluation(self, dataset: Dataset[Sample]) -> Iterator[tuple[Tensor, Tensor]]:
        """All samples once: every ``world_size``-th is this rank's, so that ranks may differ by one sample, and by a batch."""
        return self.on_device(self._loader(dataset, sampler=range(self.rank, length(dataset), self.world_size)))

    def _loader(self, dataset: Dataset[Sample], **how: Any) -> DataLoader[Sample]:
        many = self.options.loader_workers > 0
        return DataLoader(
            dataset,
            batch_size=self.local_batch_size,
            num_workers=self.options.loader_workers,
            prefetch_factor=self.options.prefetch_factor if many else None,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator().manual_seed(self.seed),  # otherwise it draws from the model's random numbers
            **how,
        )

    def on_device(self, loader: DataLoader[Sample]) -> Iterator[tuple[Tensor, Tensor]]:
        """A loader's batches, on the rank's device."""
        try:
            for inputs, labels in loader:
                yield inputs.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
        except RingsideError as error:
            raise type(error)(_last_line(error)) from error


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """One rank's training samples, epoch by epoch, through one loader."""

    source: Input
    loader: DataLoader[Sample]
    sampler: EpochSampler

    def batches(self, epoch: int, *, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch from batch ``first`` on; one iteration at a time."""
        self.sampler.set_epoch(epoch)
        self.sampler.first = first * self.source.local_batch_size
        yield from self.source.on_device(self.loader)

    def endless(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Epoch after epoch."""
        for epoch in itertools.count():
            yield from self.batches(epoch)


def length(dataset: Dataset[Sample]) -> int:
    """Samples; torch's base class declares none."""
    return len(dataset)  # type: ignore[arg-type]


def _last_line(error: RingsideError) -> str:
    """The message alone: a loader process sends it at the end of its traceback."""
    return str(error).rstrip().splitlines()[-1].removeprefix(f"{type(error).__module__}.{type(error).__name__}: ")
