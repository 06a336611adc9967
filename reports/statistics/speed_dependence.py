"""Whether a ratio moves with the machine's speed, which no arm makes: a shared host, or clocks that change.

The launches of a comparison take the machine as they find it, for minutes on end. Where the ratio depends on that, a repeat at
another time comes out otherwise, and the interval, which takes launches for independent, does not hold that time's ratio.
"""

from __future__ import annotations

import math

import numpy as np

from reports.schema import RatioBySpeed
from reports.statistics.student import Array, student_t

FEWEST = 5
"""Launches. Of fewer, hardly any correlation is beyond chance."""


def ratio_by_speed(ratios: Array, speeds: Array, *, confidence: float) -> RatioBySpeed | None:
    """The ratio at low and at high speed, where the two are correlated beyond chance; None where they are not, or nothing is known.

    The t test of Pearson's correlation, which is exact if the ratio does not depend on the speed. The speed must be that of an arm
    which is not in the ratio, as the control is: noise of a shared arm would correlate them by itself.
    ``benchmarks/interval_coverage.py --only speed`` counts false and missed ones.

    Args:
        ratios: float64 [launches], logarithms of the candidate's throughput over the baseline's.
        speeds: float64 [launches], logarithms of the control's throughput.
        confidence: 1 − the chance of a false one.
    """
    known = np.isfinite(ratios) & np.isfinite(speeds)
    ratios, speeds = ratios[known], speeds[known]
    if len(ratios) < FEWEST or not np.ptp(ratios) or not np.ptp(speeds):
        return None
    correlation, freedom = float(np.corrcoef(speeds, ratios)[0, 1]), len(ratios) - 2
    if correlation**2 * freedom <= (1 - correlation**2) * student_t(confidence, freedom) ** 2:
        return None
    ordered, half = ratios[np.argsort(speeds)], len(ratios) // 2
    return RatioBySpeed(
        slower=math.exp(ordered[:half].mean()),
        faster=math.exp(ordered[-half:].mean()),
        speeds=math.exp(np.ptp(speeds)),
        correlation=correlation,
    )
