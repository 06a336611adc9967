"""The Workload interface.

A workload of your own is one file. Name it in a plan as ``module:Class`` or
``path/to/file.py:Class``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from measurement.plans.settings import PlanOptions

Batch = Any
"""Whatever ``batches`` yields. Only the workload that made it looks inside."""


class PlannedWork:
    """What a plan names as its workload. Every rank makes its own."""

    Options: ClassVar[type[BaseModel]] = PlanOptions
    """What a plan may set under ``workload_options``."""

    def __init__(
        self, *, local_batch_size: int, seed: int, options: BaseModel | None = None
    ) -> None:
        self.local_batch_size = local_batch_size
        self.seed = seed
        self.options = options if options is not None else self.Options()


class Workload(PlannedWork, ABC):
    """A model, its optimizer, its batches and its loss.

    Every rank makes its own workload; no method is collective.

    The runner seeds torch, NumPy and ``random`` before the constructor and ``build_model``, so
    equal seeds give equal weights. Equal draws must give equal losses: draw from these generators,
    or from one that the constructor makes from ``seed``.
    """

    sample_unit: ClassVar[str] = "samples"
    """The unit of throughput: "images", "tokens"."""
    after_step_is_timed: ClassVar[bool] = True
    """Whether ``after_step`` is timed. True for work that is part of every training step."""
    weighs_micro_batches: ClassVar[bool] = False
    """Whether the losses of a step's micro-batches are weighted by ``count_samples``, for batches
    with unequal numbers of tokens.

    All of a step's batches are then loaded before its first forward pass. Otherwise each has the
    same weight. Ranks always do.
    """

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return a freshly initialised model on the CPU. The runner moves it to the rank's
        device.
        """

    @abstractmethod
    def build_optimizer(self, model: nn.Module) -> Optimizer | Sequence[Optimizer]:
        """Return a fresh optimizer over ``model``'s parameters, or several, which step one after
        another.

        Do not scale the learning rate by the number of ranks. A scheduler of
        ``torch.optim.lr_scheduler`` is made here, kept, and stepped in ``after_step``.
        """

    @abstractmethod
    def batches(self, *, rank: int, world_size: int, device: torch.device) -> Iterator[Batch]:
        """Yield batches of this rank's shard on ``device``. Equal arguments give equal batches.

        Where they end, they are restarted as a new epoch, and the report says so.
        """

    @abstractmethod
    def compute_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss over ``batch``: a scalar on the model's device, ready for
        ``backward()``.

        ``model`` may be wrapped, so call it and use none of its attributes. Do not call
        ``backward()`` here: add up losses.
        """

    @abstractmethod
    def count_samples(self, batch: Batch) -> int:
        """Count the batch's samples, in ``sample_unit``."""

    def after_step(self, step: int, *, model: nn.Module, optimizer: Optimizer) -> None:
        """Do what follows each optimizer step: a learning-rate schedule, a moving average of the
        weights. The same in every arm.

        Called on every rank; not collective. Make what belongs to one model in ``build_model`` or
        ``build_optimizer``.

        Args:
            step: optimizer steps taken since the model was built, this one included.
            model: as ``build_model`` returned it; sharded where the backend shards.
            optimizer: the one that stepped; its ``param_groups`` hold the learning rates in force.
        """
        return

    @property
    def prefetched_batches(self) -> int:
        """How many batches may be loaded ahead; 0 where each is loaded when it is needed.

        So many steps are untimed, since they do not wait for data.
        """
        return 0

    def batches_per_epoch(self, *, world_size: int) -> int | None:
        """Return how many batches each rank has in an epoch, or None where there are no epochs.

        A workload without epochs cannot be trained to the end.

        Raises:
            PlanError: there is not one batch for every rank.
        """
        return None

    def epoch_batches(
        self, epoch: int, *, rank: int, world_size: int, device: torch.device
    ) -> Iterator[Batch]:
        """Yield one epoch of this rank's shard.

        All ranks' batches i together have the samples of batch i of one process with the global
        batch size. Order and augmentation depend on seed, epoch and sample index only.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has batches_per_epoch but no epoch_batches"
        )

    def compute_loss_and_hits(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Compute the loss and, from the same forward pass, the training accuracy's hits.

        Must not wait for the device.

        Returns:
            The loss as ``compute_loss`` gives it. The hits as int64 [2] on the same device: how
            many samples of the batch have their label ranked first, and among the first five. None
            instead where a workload has no accuracy.
        """
        return self.compute_loss(model, batch), None

    def require_data(self) -> None:
        """Check, before any rank starts, that the data is there and intact.

        Download it if the options say so.

        Raises:
            PlanError: data is missing or damaged. The message says what is expected where, what was
                found, and how to get it.
        """
        return

    def evaluation_batches(
        self, *, rank: int, world_size: int, device: torch.device
    ) -> Iterator[Batch]:
        """Yield this rank's share of the held-out data: over all ranks every sample once.

        Empty if nothing is held out.
        """
        return iter(())

    def evaluation_sums(self, model: nn.Module, batch: Batch) -> EvaluationSums:
        """Evaluate one batch of ``evaluation_batches``.

        ``model`` is in evaluation mode and no gradients are recorded.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has evaluation_batches but no evaluation_sums"
        )


@dataclass(frozen=True, kw_only=True)
class EvaluationSums:
    """Sums over a batch, a rank's share or all held-out samples.

    They are sums, not means, so that they can be added.
    """

    loss_sum: float = 0.0
    top1: int = 0
    """How many samples have their label ranked first."""
    top5: int = 0
    """How many samples have it among the first five."""
    count: int = 0

    def __add__(self, other: EvaluationSums) -> EvaluationSums:
        return EvaluationSums(
            **{
                field.name: getattr(self, field.name) + getattr(other, field.name)
                for field in fields(self)
            }
        )


def classification_sums(logits: Tensor, labels: Tensor) -> EvaluationSums:
    """Sum cross entropy (in float64) and hits over logits [n, classes] and labels int64 [n]."""
    losses = functional.cross_entropy(logits.float(), labels, reduction="none")
    sums = torch.cat([losses.double().sum()[None], count_hits(logits, labels).double()]).tolist()
    return EvaluationSums(loss_sum=sums[0], top1=int(sums[1]), top5=int(sums[2]), count=len(labels))


@torch.no_grad()
def count_hits(logits: Tensor, labels: Tensor) -> Tensor:
    """Count the labels ranked first, and among the first five: int64 [2] on the device of
    ``logits`` [n, classes].
    """
    ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return torch.stack([ranked[:, 0].sum(), ranked.sum()])


@torch.no_grad()
def shard_sums(
    workload: Workload, model: nn.Module, *, rank: int, world_size: int, device: torch.device
) -> EvaluationSums:
    """Evaluate the bare model, the same on every rank, on one rank's share of the held-out data.

    Not collective.

    It must not be wrapped: a wrapper's forward pass may be collective (DDP broadcasts buffers), and
    ranks may have different numbers of batches.
    """
    was_training = model.training
    model.eval()
    try:
        batches = workload.evaluation_batches(rank=rank, world_size=world_size, device=device)
        return sum(
            (workload.evaluation_sums(model, batch) for batch in batches), start=EvaluationSums()
        )
    finally:
        model.train(was_training)
