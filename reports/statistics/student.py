"""Student's t: its quantile, and the interval of a mean.

Every other interval over launches or seeds is made from these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special

from reports.parts_schema import Estimate

Array = npt.NDArray[np.float64]
LARGEST_LOG = 50.0
"""Bounds of a ratio are within e to this power."""


def student_t(confidence: float, df: float) -> float:
    """Student's t for a two-sided interval."""
    return float(special.stdtrit(df, (1 + confidence) / 2))


def both_sides(confidence: float) -> float:
    """The confidence of a two-sided interval whose bounds each hold with this confidence by
    themselves: 90% for 95%.
    """
    return 2 * confidence - 1


def half_width(values: Array, *, confidence: float, fewest: int) -> float | None:
    """Half the width of Student's interval of a mean, without any for equal values; None for fewer
    than ``fewest``, which is two at least.
    """
    if len(values) < fewest:
        return None
    if (values == values[0]).all():
        return 0.0
    return (
        student_t(confidence, len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    )


def t_interval(
    values: Sequence[float | Fraction] | pd.Series, *, confidence: float, fewest: int = 2
) -> Estimate | None:
    """The mean, exact of fractions, with its interval; without bounds for fewer than ``fewest``
    values, None for none.
    """
    if not len(values):
        return None
    mean = float(np.asarray(values).mean())
    half = half_width(np.asarray(values, dtype=np.float64), confidence=confidence, fewest=fewest)
    return (
        Estimate(value=mean)
        if half is None
        else Estimate(value=mean, ci_low=mean - half, ci_high=mean + half)
    )


def ratio_of_means(upper: Array, lower: Array, *, confidence: float) -> Estimate | None:
    """The ratio of two means of paired values with Fieller's interval; None where the lower mean is
    not shown to differ from 0.

    Fieller, "Some problems in interval estimation", JRSS B 16, 1954. Pairs are taken for
    independent of each other.
    """
    if len(lower) < 3:
        return None
    (above, both), (_, below) = np.cov(upper, lower) / len(lower)
    top, bottom = float(upper.mean()), float(lower.mean())
    squared = student_t(confidence, len(lower) - 1) ** 2
    divisor = bottom**2 - squared * below
    if divisor <= 0:
        return None
    centre = top * bottom - squared * both
    half = math.sqrt(max(0.0, centre**2 - divisor * (top**2 - squared * above)))
    return Estimate(
        value=top / bottom, ci_low=(centre - half) / divisor, ci_high=(centre + half) / divisor
    )


def log_interval(
    value: float, logs: Sequence[float] | pd.Series, *, confidence: float, fewest: int = 2
) -> Estimate:
    """A positive value that launches or seeds give together, with Student's interval of their
    logarithms around its own.
    """
    values = np.asarray(logs, dtype=np.float64)
    half = half_width(values, confidence=confidence, fewest=fewest)
    if half is None:
        return Estimate(value=value)
    factor = math.exp(min(half, LARGEST_LOG))
    return Estimate(value=value, ci_low=value / factor, ci_high=value * factor)
