"""The common part of workloads on labelled data: the input pipeline, cross entropy and exact
evaluation.

A subclass gives the model and the samples.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer
from torch.utils.data import Dataset

from workloads.base import EvaluationSums, Workload, classification_sums, count_hits
from workloads.data.input import Epochs, Input, InputOptions, Sample


class SGDOptions(InputOptions):
    """Options of a workload trained by SGD."""

    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of the optimizer, before any scaling by ranks."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of the optimizer."""


class Supervised(Workload):
    """Learns the labels of images [batch, channels, height, width], or of every position in
    sequences [batch, length].

    Batches are pairs of inputs and labels.
    """

    options: InputOptions
    _epochs: Epochs | None = None
    """Kept from epoch to epoch, so that its loader processes are kept too."""

    @abstractmethod
    def read_training_set(self) -> Dataset[Sample]:
        """Read the samples to train on.

        Raises:
            PlanError: they are missing or damaged.
        """

    @abstractmethod
    def read_held_out_set(self) -> Dataset[Sample]:
        """Read the samples to evaluate on.

        Raises:
            PlanError: they are missing or damaged.
        """

    @cached_property
    def training_set(self) -> Dataset[Sample]:
        return self.read_training_set()

    @cached_property
    def held_out_set(self) -> Dataset[Sample]:
        return self.read_held_out_set()

    def require_data(self) -> None:
        """Read both datasets."""
        self.read_training_set()
        self.read_held_out_set()

    def batches(
        self, *, rank: int, world_size: int, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield epoch after epoch of this rank's shard, reshuffled each time."""
        return self._input(rank, world_size, device).epochs(self.training_set).endless()

    @property
    def prefetched_batches(self) -> int:
        return self.options.loader_workers * self.options.prefetch_factor

    def batches_per_epoch(self, *, world_size: int) -> int:
        return self._input(0, world_size, torch.device("cpu")).batches_per_epoch(self.training_set)

    def epoch_batches(
        self, epoch: int, *, rank: int, world_size: int, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        source = self._input(rank, world_size, device)
        if self._epochs is None or self._epochs.source != source:
            self._epochs = source.epochs(self.training_set)
        return self._epochs.batches(epoch)

    def evaluation_batches(
        self, *, rank: int, world_size: int, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        return self._input(rank, world_size, device).evaluation(self.held_out_set)

    def _input(self, rank: int, world_size: int, device: torch.device) -> Input:
        return Input(
            options=self.options,
            local_batch_size=self.local_batch_size,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            device=device,
        )

    def compute_loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(*_answers(model, batch))

    def compute_loss_and_hits(
        self, model: nn.Module, batch: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        logits, labels = _answers(model, batch)
        return functional.cross_entropy(logits, labels), count_hits(logits, labels)

    def evaluation_sums(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> EvaluationSums:
        return classification_sums(*_answers(model, batch))

    def count_samples(self, batch: tuple[Tensor, Tensor]) -> int:
        """Count the labels: one for an image, one for each position in a sequence."""
        return batch[1].numel()


class SGDTrained(Supervised):
    """A workload on images, trained by SGD with momentum."""

    options: SGDOptions
    sample_unit = "images"

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        options = self.options
        return SGD(
            model.parameters(),
            lr=options.learning_rate,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
        )


def _answers(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return logits [n, classes] and labels [n], also where a sample has a label at every
    position.
    """
    inputs, labels = batch
    logits: Tensor = model(inputs)
    return logits.flatten(0, -2), labels.flatten()
