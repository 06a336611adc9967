"""Student's t: its quantile, and the intervals that are made of it alone: of a mean, of a ratio of
means, and of the ratio of runs that took no turns.

Where arms took no turns each arm's runs are a sample of their own: Welch's t interval on the
difference of mean logarithms of total throughput (Biometrika 34, 1947), with Satterthwaite's
degrees of freedom. No variance is shared, since nothing says that two commands started by hand vary
alike. Where the runs of two arms alternated they are paired, neighbour with neighbour, which takes
a drift of the machine out: Student's t of the pairs' differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special

from reports.parts_schema import Estimate, RunOrder
from reports.reasons import Caution

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


class RatioEstimate(Estimate):
    """A ratio of two arms' throughput with its interval."""

    equivalence_low: float | None = None
    """One-sided bounds: each holds by itself with the interval's confidence, so that at 95% both
    are those of a 90% interval."""
    equivalence_high: float | None = None
    run_low: float | None = None
    """Where one long training, or run, is expected, since launches differ: a prediction interval of
    the same confidence, without the noise within a launch."""
    run_high: float | None = None
    launches: int
    pairs: int
    caution: Caution | None

    @property
    def one_sided(self) -> tuple[float, float] | None:
        """The bounds for equivalence."""
        return (
            None
            if self.equivalence_low is None or self.equivalence_high is None
            else (self.equivalence_low, self.equivalence_high)
        )

    def times(self, factor: float) -> RatioEstimate:
        """The ratio and all its bounds, multiplied."""
        return self.model_copy(
            update={name: bound * factor for name, bound in self if isinstance(bound, float)}
        )


def ratio_estimate(
    centre: float,
    half_widths: tuple[float, float, float] | None,
    *,
    launches: int,
    pairs: int,
    caution: Caution | None,
) -> RatioEstimate:
    """A ratio from its logarithm.

    ``half_widths``: half the widths of the interval, of its one-sided bounds and of the prediction
    interval; None where the data cannot carry one. Bounds are finite however wide that is.
    """
    bounds: dict[str, float] = {}
    for name, half in zip(("ci", "equivalence", "run"), half_widths or (), strict=False):
        low, high = np.clip([centre - half, centre + half], -LARGEST_LOG, LARGEST_LOG)
        bounds |= {f"{name}_low": math.exp(low), f"{name}_high": math.exp(high)}
    return RatioEstimate(
        value=math.exp(centre), launches=launches, pairs=pairs, caution=caution, **bounds
    )


@dataclass(frozen=True, kw_only=True)
class Runs:
    """One arm's runs, in the order of their start."""

    logs: Array
    """float64 [runs]: ln of samples per second, over the whole run."""
    started: Sequence[str]
    """When each began: text that sorts as time does; empty where that is not known."""


def run_order(ours: Runs, theirs: Runs) -> RunOrder | None:
    """The order of the runs of two arms in time; None where one has none.

    ``alternating``: in pairs of neighbours, one of each arm, in whatever order within a pair. ``one
    after the other``: all of one arm before all of the other, so that a drift of the machine looks
    like a difference.
    """
    if not ours.started or not theirs.started:
        return None
    order = [
        which
        for _, which in sorted(
            [*((at, 0) for at in ours.started), *((at, 1) for at in theirs.started)]
        )
    ]
    are_pairs = len(ours.started) == len(theirs.started) and all(
        a != b for a, b in zip(order[::2], order[1::2], strict=True)
    )
    if are_pairs and len(ours.started) > 1:
        return "alternating"
    changes = sum(a != b for a, b in pairwise(order))
    return "one after the other" if changes == 1 else "mixed"


def separate_ratio(
    ours: Runs, theirs: Runs, *, confidence: float, family: int = 1
) -> RatioEstimate | None:
    """The ratio of two arms' throughput, geometric means over their runs, with its interval.

    ``confidence``: with which all of ``family`` intervals hold at once (Šidák).

    Returns:
        None where an arm has no run; no bounds where one has a single run: runs of a job differ by
        more than their blocks.
    """
    runs = min(len(ours.logs), len(theirs.logs))
    if not runs:
        return None
    paired = run_order(ours, theirs) == "alternating"
    half_widths = None
    if runs > 1:
        error, df, spread = _paired(ours, theirs) if paired else _welch(ours, theirs)
        each = confidence ** (1 / family)
        half_widths = (
            student_t(each, df) * error,
            student_t(both_sides(each), df) * error,
            student_t(confidence, df) * math.hypot(error, spread),
        )
    cautions: dict[int, Caution] = {1: "one run", 2: "two runs"}
    return ratio_estimate(
        float(ours.logs.mean() - theirs.logs.mean()),
        half_widths,
        launches=runs,
        pairs=runs if paired else 0,
        caution=cautions.get(runs),
    )


def _paired(ours: Runs, theirs: Runs) -> tuple[float, float, float]:
    """Standard error of the mean difference, degrees of freedom, and how much one pair's difference
    varies.
    """
    differences = ours.logs - theirs.logs
    spread = float(differences.std(ddof=1))
    return spread / len(differences) ** 0.5, len(differences) - 1.0, spread


def _welch(ours: Runs, theirs: Runs) -> tuple[float, float, float]:
    """Those figures of two samples."""
    variances = np.array([ours.logs.var(ddof=1), theirs.logs.var(ddof=1)])
    numbers = np.array([len(ours.logs), len(theirs.logs)])
    parts = variances / numbers
    if not parts.sum():
        return 0.0, float((numbers - 1).min()), 0.0
    df = parts.sum() ** 2 / (parts**2 / (numbers - 1)).sum()
    return float(parts.sum() ** 0.5), float(df), float(variances.sum() ** 0.5)
