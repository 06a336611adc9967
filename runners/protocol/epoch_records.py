"""Makes one record of all ranks' reports of an epoch. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from measurement.training import EpochRecord
from runners.protocol.messages import EpochReport


def combine(reports: Sequence[EpochReport], *, epoch: int) -> EpochRecord:
    """Make the record of an epoch.

    Counts and held-out sums are added, since each sample belongs to one rank. A step's loss is the mean over ranks, whose batches
    are equally large. Times are those of the slowest rank.

    Args:
        reports: of all ranks, by rank; at least one.
        epoch: from 0.
    """
    first = reports[0]
    ranks = [steps for report in reports for steps in report.block.ranks]
    return EpochRecord(
        epoch=epoch,
        steps=len(first.losses),
        step_losses=[math.fsum(losses) / len(losses) for losses in zip(*(r.losses for r in reports), strict=True)],
        learning_rates=first.learning_rates,
        count=sum(sum(steps.samples) for steps in ranks),
        top1=_total([report.top1 for report in reports]),
        top5=_total([report.top5 for report in reports]),
        train_s=max(sum(map(sum, steps.phases_s)) for steps in ranks),
        evaluate_s=max(steps.untimed_s for steps in ranks),
        held_out_loss_sum=math.fsum(report.held_out_loss_sum for report in reports),
        held_out_top1=sum(report.held_out_top1 for report in reports),
        held_out_top5=sum(report.held_out_top5 for report in reports),
        held_out_count=sum(report.held_out_count for report in reports),
    )


def _total(counts: Sequence[int | None]) -> int | None:
    """None where a rank does not tell."""
    told = [count for count in counts if count is not None]
    return sum(told) if len(told) == len(counts) else None
