"""All ranks' reports of one epoch made into its records. Pure: the driver and the runner that stands alone both call it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from measurement.record import BlockRecord
from measurement.training import EpochRecord
from runners.job import EpochReport


def combine(reports: Sequence[EpochReport], *, epoch: int) -> EpochRecord:
    """The record of an epoch.

    Counts and held-out sums are added, since every sample was one rank's; a step's loss is the mean of the ranks', whose
    batches are equally large; times are the slowest rank's.

    Args:
        reports: of all ranks, by rank; at least one.
        epoch: from 0.
    """
    first = reports[0]
    return EpochRecord(
        epoch=epoch,
        steps=len(first.losses),
        step_losses=[math.fsum(losses) / len(losses) for losses in zip(*(r.losses for r in reports), strict=True)],
        learning_rates=first.learning_rates,
        count=sum(report.count for report in reports),
        top1=_total([report.top1 for report in reports]),
        top5=_total([report.top5 for report in reports]),
        train_s=max(sum(map(sum, report.phases_s)) for report in reports),
        evaluate_s=max(report.evaluate_s for report in reports),
        held_out_loss_sum=math.fsum(report.held_out_loss_sum for report in reports),
        held_out_top1=sum(report.held_out_top1 for report in reports),
        held_out_top5=sum(report.held_out_top5 for report in reports),
        held_out_count=sum(report.held_out_count for report in reports),
    )


def epoch_block(record: EpochRecord, *, turn: int, started_s: float, wall_s: float) -> BlockRecord:
    """An epoch as the block that it also is; times as in ``BlockRecord``, the evaluation untimed."""
    return BlockRecord(
        turn=turn,
        round=record.epoch,
        block=record.epoch,
        kind="sync",
        steps=record.steps,
        started_s=started_s,
        wall_s=wall_s,
        untimed_s=record.evaluate_s,
    )


def _total(counts: Sequence[int | None]) -> int | None:
    """None where a rank does not tell."""
    told = [count for count in counts if count is not None]
    return sum(told) if len(told) == len(counts) else None
