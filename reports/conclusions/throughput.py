"""Throughput: all samples over the sum of the slowest rank's block times. Every table, chart, file and event takes it from here.

A stall counts with all the time it took, as it does for somebody who trains.
"""

from __future__ import annotations

import pandas as pd

from reports.conclusions.blocks import by_launch
from reports.statistics.bootstrap import ratio_of_sums_interval
from reports.statistics.intervals import Interval

COLUMNS = ["samples", "block_s"]


def throughput_per_s(blocks: pd.DataFrame) -> float:
    """Samples per second over all these blocks together.

    Args:
        blocks: synchronised ones of one arm, at least one (``reports.conclusions.blocks.tabulate_blocks``).
    """
    samples, seconds = blocks[COLUMNS].sum()
    return float(samples / seconds)


def throughput_interval(blocks: pd.DataFrame, *, confidence: float, seed: int) -> Interval | None:
    """``throughput_per_s`` with a percentile bootstrap over launches and the blocks within each; None without blocks.

    Args:
        blocks: as for ``throughput_per_s``.
        confidence: of the two-sided interval.
        seed: of the bootstrap's draws.
    """
    return ratio_of_sums_interval(by_launch(blocks, COLUMNS), confidence=confidence, seed=seed)
