"""Exact evaluation on any number of ranks: each rank sums over its share, and the shares' sums are added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from workloads.base import Workload


@dataclass(frozen=True, kw_only=True)
class EvaluationSums:
    """Sums over a batch, a rank's share or all held-out samples. They are sums, not means, so that they can be added."""

    loss_sum: float = 0.0
    top1: int = 0
    """How many samples have their label ranked first."""
    top5: int = 0
    """How many samples have it among the first five."""
    count: int = 0

    def __add__(self, other: EvaluationSums) -> EvaluationSums:
        return EvaluationSums(
            loss_sum=self.loss_sum + other.loss_sum,
            top1=self.top1 + other.top1,
            top5=self.top5 + other.top5,
            count=self.count + other.count,
        )

    def metrics(self) -> dict[str, float]:
        """Return mean loss and accuracies by name. Empty if nothing was counted."""
        if not self.count:
            return {}
        sums = {"loss": self.loss_sum, "top1_accuracy": self.top1, "top5_accuracy": self.top5}
        return {name: value / self.count for name, value in sums.items()}


def classification_sums(logits: Tensor, labels: Tensor) -> EvaluationSums:
    """Sum cross entropy (in float64) and hits over logits [n, classes] and labels int64 [n]."""
    losses = functional.cross_entropy(logits.float(), labels, reduction="none")
    sums = torch.cat([losses.double().sum()[None], count_hits(logits, labels).double()]).tolist()
    return EvaluationSums(loss_sum=sums[0], top1=int(sums[1]), top5=int(sums[2]), count=len(labels))


@torch.no_grad()
def count_hits(logits: Tensor, labels: Tensor) -> Tensor:
    """Count the labels ranked first, and among the first five: int64 [2] on the device of ``logits`` [n, classes]."""
    ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return torch.stack([ranked[:, 0].sum(), ranked.sum()])


@torch.no_grad()
def shard_sums(workload: Workload, model: nn.Module, *, rank: int, world_size: int, device: torch.device) -> EvaluationSums:
    """Evaluate a model on one rank's share of the held-out data. Not collective.

    Args:
        workload: The workload whose data is held out.
        model: The bare model, with the same parameters and buffers on every rank. It must not be wrapped: a wrapper's
            forward pass may be collective (DDP broadcasts buffers), and ranks may have different numbers of batches.
        rank: This rank.
        world_size: The number of shares.
        device: The model's device.
    """
    was_training = model.training
    model.eval()
    try:
        batches = workload.evaluation_batches(rank=rank, world_size=world_size, device=device)
        return sum((workload.evaluation_sums(model, batch) for batch in batches), start=EvaluationSums())
    finally:
        model.train(was_training)
