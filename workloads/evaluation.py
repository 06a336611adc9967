"""How good a model is, exactly, on however many ranks: each adds up its share, and sums of shares are the sum of all."""

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
    """Of a batch, a rank's share or all: sums, never means, so that they can be added."""

    loss_sum: float = 0.0
    top1: int = 0
    """How many have their label ranked first."""
    top5: int = 0
    """How many have it among the first five."""
    count: int = 0

    def __add__(self, other: EvaluationSums) -> EvaluationSums:
        return EvaluationSums(
            loss_sum=self.loss_sum + other.loss_sum,
            top1=self.top1 + other.top1,
            top5=self.top5 + other.top5,
            count=self.count + other.count,
        )

    def metrics(self) -> dict[str, float]:
        """Mean loss and accuracies by name; empty where nothing was counted."""
        if not self.count:
            return {}
        sums = {"loss": self.loss_sum, "top1_accuracy": self.top1, "top5_accuracy": self.top5}
        return {name: value / self.count for name, value in sums.items()}


def classification_sums(logits: Tensor, labels: Tensor) -> EvaluationSums:
    """Cross entropy, summed in float64, and right answers; logits [n, classes], labels int64 [n]."""
    losses = functional.cross_entropy(logits.float(), labels, reduction="none")
    sums = torch.cat([losses.double().sum()[None], count_hits(logits, labels).double()]).tolist()
    return EvaluationSums(loss_sum=sums[0], top1=int(sums[1]), top5=int(sums[2]), count=len(labels))


@torch.no_grad()
def count_hits(logits: Tensor, labels: Tensor) -> Tensor:
    """int64 [2] on the device of ``logits`` [n, classes]: labels ranked first, and among the first five."""
    ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return torch.stack([ranked[:, 0].sum(), ranked.sum()])


@torch.no_grad()
def shard_sums(workload: Workload, model: nn.Module, *, rank: int, world_size: int, device: torch.device) -> EvaluationSums:
    """One rank's share of the held-out data. Not collective.

    Args:
        workload: whose held-out data.
        model: bare, and with the same parameters and buffers on every rank. A wrapper's forward may be collective (DDP sends
            buffers), and ranks may have different numbers of batches.
        rank: whose share.
        world_size: how many share.
        device: where ``model`` is.
    """
    was_training = model.training
    model.eval()
    try:
        batches = workload.evaluation_batches(rank=rank, world_size=world_size, device=device)
        return sum((workload.evaluation_sums(model, batch) for batch in batches), start=EvaluationSums())
    finally:
        model.train(was_training)
