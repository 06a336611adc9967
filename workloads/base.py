"""The Workload interface. One file in anyone's package is enough: name it ``module:Class`` or ``path/to/file.py:Class``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.optim import Optimizer

from workloads.evaluation import EvaluationSums, shard_sums

Batch = Any
"""Whatever ``batches`` yields; only the workload that made it looks inside."""


class NoOptions(BaseModel):
    """Options of a workload that has none; every workload's options refuse unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Workload(ABC):
    """Something to train. Every rank makes its own; nothing here is collective.

    Random numbers: the runner seeds torch before ``build_model``, so that equal seeds give equal weights; ``batches`` draws
    only from generators of its own.
    """

    Options: ClassVar[type[BaseModel]] = NoOptions
    """What a plan may set under ``workload_options``."""
    sample_unit: ClassVar[str] = "samples"
    """What is counted per second: "images", "tokens"."""

    def __init__(self, *, local_batch_size: int, seed: int, options: BaseModel | None = None) -> None:
        self.local_batch_size = local_batch_size
        self.seed = seed
        self.options = options if options is not None else self.Options()

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A freshly initialised model on the CPU; the runner moves it to the rank's device."""

    @abstractmethod
    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """A fresh optimizer over ``model``'s parameters; the learning rate is not scaled by the number of ranks."""

    @abstractmethod
    def batches(self, *, rank: int, world_size: int, device: torch.device) -> Iterator[Batch]:
        """Endless batches of this rank's shard on ``device``; equal arguments give equal batches."""

    @abstractmethod
    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss over ``batch``: a scalar on the model's device, ready for ``backward()``.

        ``model`` may be wrapped: call it, and touch no attribute of it.
        """

    @abstractmethod
    def count_samples(self, batch: Batch) -> int:
        """How many ``sample_unit`` the batch holds."""

    def batches_per_epoch(self, *, world_size: int) -> int | None:
        """How many batches each rank has in an epoch; None: ``batches`` has no epochs, and nothing can be trained to its end.

        Raises:
            PlanError: the data has not one batch for every rank.
        """
        return None

    def epoch_batches(self, epoch: int, *, first_batch: int, rank: int, world_size: int, device: torch.device) -> Iterator[Batch]:
        """One epoch of this rank's shard from batch ``first_batch`` on; those before it are not loaded.

        All ranks' batches at one place hold together what one process with ``world_size`` times the batch would have there.
        A sample's place and looks depend on seed, epoch and index alone.
        """
        raise NotImplementedError(f"{type(self).__name__} has batches_per_epoch but no epoch_batches")

    def compute_loss_and_hits(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """``compute_loss``, and from the same forward how often the answer was right, for the accuracy in training.

        Returns:
            The loss, and int64 [2] on its device: how many of the batch's samples have their label ranked first, and among
            the first five; None where there is no such thing. Nothing here waits for the device.
        """
        return self.compute_loss(model, batch), None

    def require_data(self) -> None:
        """See, before anything starts, that what the workload reads is there and whole; fetch it where the options say so.

        Raises:
            PlanError: what is expected where, what was found, and how to get it.
        """
        return

    def evaluation_batches(self, *, rank: int, world_size: int, device: torch.device) -> Iterator[Batch]:
        """This rank's share of the held-out data: over all ranks every sample exactly once. Empty: nothing is held out."""
        return iter(())

    def evaluation_sums(self, model: nn.Module, batch: Batch) -> EvaluationSums:
        """What a batch of ``evaluation_batches`` adds; ``model`` is in evaluation mode and no gradients are recorded."""
        raise NotImplementedError(f"{type(self).__name__} has evaluation_batches but no evaluation_sums")

    def evaluate(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        """Metrics of a trained model on all held-out data, by name; empty where the workload has none."""
        return shard_sums(self, model, rank=0, world_size=1, device=device).metrics()
