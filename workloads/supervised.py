"""What all workloads on labelled data share: samples through the input pipeline, cross entropy, exact evaluation.

A subclass names its model and its samples.
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

from workloads.base import Workload
from workloads.evaluation import EvaluationSums, classification_sums, count_hits
from workloads.input import Epochs, Input, InputOptions, Sample


class SGDOptions(InputOptions):
    """Options of a workload trained by SGD."""

    learning_rate: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)


class Supervised(Workload):
    """Learns labels: of images [batch, channels, height, width], or of every place in a sequence [batch, length]."""

    options: InputOptions
    _epochs: Epochs | None = None
    """Kept from epoch to epoch, its loader processes with it."""

    @abstractmethod
    def read_training(self) -> Dataset[Sample]:
        """The samples to train on.

        Raises:
            PlanError: they are missing or damaged.
        """

    @abstractmethod
    def read_held_out(self) -> Dataset[Sample]:
        """The samples to evaluate on; raises as ``read_training`` does."""

    @cached_property
    def training(self) -> Dataset[Sample]:
        """Read once."""
        return self.read_training()

    @cached_property
    def held_out(self) -> Dataset[Sample]:
        """Read once."""
        return self.read_held_out()

    def require_data(self) -> None:
        """Reads all that is read at the start; building the model reads the pretrained weights."""
        self.read_training()
        self.read_held_out()
        self.build_model()

    def batches(self, *, rank: int, world_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Epoch after epoch of this rank's shard, reshuffled each time; inputs and labels."""
        return self._input(rank, world_size, device).training(self.training).endless()

    def batches_per_epoch(self, *, world_size: int) -> int:
        """What does not fill a batch on every rank is left out."""
        return self._input(0, world_size, torch.device("cpu")).batches_per_epoch(self.training)

    def epoch_batches(
        self, epoch: int, *, first_batch: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels."""
        wanted = self._input(rank, world_size, device)
        if self._epochs is None or self._epochs.source != wanted:
            self._epochs = wanted.training(self.training)
        return self._epochs.batches(epoch, first=first_batch)

    def evaluation_batches(self, *, rank: int, world_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's share of the held-out samples, inputs and labels."""
        return self._input(rank, world_size, device).evaluation(self.held_out)

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
        """Cross entropy."""
        return functional.cross_entropy(*_answers(model, batch))

    def compute_loss_and_hits(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Cross entropy, and how often the label is ranked first and among the first five."""
        logits, labels = _answers(model, batch)
        return functional.cross_entropy(logits, labels), count_hits(logits, labels)

    def evaluation_sums(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> EvaluationSums:
        """Cross entropy, and how often the label is ranked first and among the first five."""
        return classification_sums(*_answers(model, batch))

    def count_samples(self, batch: tuple[Tensor, Tensor]) -> int:
        """Labels in the batch."""
        return batch[1].numel()


class SGDTrained(Supervised):
    """Trained by SGD with momentum."""

    options: SGDOptions
    sample_unit = "images"

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """SGD with momentum."""
        given = self.options
        return SGD(model.parameters(), lr=given.learning_rate, momentum=given.momentum, weight_decay=given.weight_decay)


def _answers(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits [n, classes] and labels [n], whether a sample has one label or one at every place."""
    inputs, labels = batch
    logits: Tensor = model(inputs)
    return logits.flatten(0, -2), labels.flatten()
