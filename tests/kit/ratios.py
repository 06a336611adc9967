"""Ratios of synthetic blocks, for tests and benchmarks of intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reports.statistics.intervals import Launches, ratio_intervals
from reports.statistics.student import Array, RatioEstimate


def equal_work(*seconds: Sequence[float] | Array) -> Array:
    """One launch's table of blocks that all did equal work.

    Args:
        seconds: per round, of the candidate's blocks, then of each copy of the baseline's; NaN
            where there is none.
    """
    times = np.stack([np.asarray(series, dtype=np.float64) for series in seconds], axis=-1)
    return np.stack([np.where(np.isnan(times), np.nan, 1.0), times], axis=-1)


def ratio_interval(launches: Launches, *, confidence: float) -> RatioEstimate | None:
    """The interval of a single ratio, which no other helps to estimate."""
    return ratio_intervals([launches], confidence=confidence, family=1)[0]


def log_width(ratio: RatioEstimate) -> float:
    """The width of an interval, as log."""
    assert ratio.bounds is not None
    return math.log(ratio.bounds[1] / ratio.bounds[0])
