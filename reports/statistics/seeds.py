"""Intervals over a few seeds: Student's t, paired where two arms trained with the same seeds. Pure functions.

Arms of the same seed begin with the same weights and see the same samples in the same order. Only the order of summation differs,
and what that grows into. So arms are compared seed by seed, never mean by mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
from scipy import special

from reports.estimate import Estimate
from reports.training_schema import Convergence

FEWEST = 3
"""Seeds that an interval is made from. Two that happen to agree, as accuracies counted in samples do, would make a certainty."""


def t_interval(values: Sequence[float | Fraction], *, confidence: float) -> Estimate | None:
    """The mean with its interval; without bounds for fewer than ``FEWEST`` values, None for none.

    Fractions are compared exactly: where all are equal, the interval has no width at all.
    """
    if not values:
        return None
    mean = float(sum(Fraction(value) for value in values) / len(values))
    if len(values) < FEWEST:
        return Estimate(value=mean)
    if len(set(values)) == 1:
        return Estimate(value=mean, ci_low=mean, ci_high=mean)
    error = statistics.stdev(map(float, values)) / math.sqrt(len(values))
    half = float(special.stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    return Estimate(value=mean, ci_low=mean - half, ci_high=mean + half)


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float], *, confidence: float) -> Estimate | None:
    """The geometric mean of ratios pair by pair, with the t interval of their logarithms."""
    return geometric_mean([ours / theirs for ours, theirs in zip(numerators, denominators, strict=True)], confidence=confidence)


def geometric_mean(values: Sequence[float], *, confidence: float) -> Estimate | None:
    """The geometric mean of positive values, with the t interval of their logarithms."""
    found = t_interval([math.log(value) for value in values], confidence=confidence)
    if found is None:
        return None
    low, high = (None if bound is None else math.exp(bound) for bound in (found.ci_low, found.ci_high))
    return Estimate(value=math.exp(found.value), ci_low=low, ci_high=high)


def converges(difference: Estimate | None, *, margin: float) -> Convergence:
    """Whether two arms come to the same accuracy.

    'same' where the interval of their difference lies within ±margin, 'differs' where it does not and excludes 0, else 'undecided'.
    """
    if difference is None or difference.ci_low is None or difference.ci_high is None:
        return "undecided"
    if -margin <= difference.ci_low and difference.ci_high <= margin:
        return "same"
    return "undecided" if difference.ci_low <= 0 <= difference.ci_high else "differs"


def median_time(times_s: Sequence[float | None]) -> float | None:
    """The median of times, None counting as later than all others; None where that is the median."""
    if not times_s:
        return None
    median = statistics.median(math.inf if time is None else time for time in times_s)
    return median if math.isfinite(median) else None


def mean_interval(values: Iterable[float], *, confidence: float) -> Estimate:
    """The mean of at least one value; without bounds where there is only one."""
    found = np.asarray(list(values), dtype=np.float64)
    mean = float(found.mean())
    if len(found) < 2:
        return Estimate(value=mean)
    half = float(special.stdtrit(len(found) - 1, (1 + confidence) / 2)) * float(found.std(ddof=1)) / math.sqrt(len(found))
    return Estimate(value=mean, ci_low=mean - half, ci_high=mean + half)
