"""Descriptive intervals by the percentile bootstrap over launches, then over what lies within them. Not for verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from reports.statistics.intervals import Array, Interval

Values = Sequence[Array]
"""float64 [values] per launch; NaN where a value is missing."""

RESAMPLES = 1000
"""Draws of a bootstrap."""


def median_interval(values: Values, *, confidence: float, seed: int) -> Interval | None:
    """The median of all launches' values with a percentile bootstrap over launches, then values; None without values.

    ``seed`` is that of the draws.
    """
    present = [one[np.isfinite(one)] for one in values if np.isfinite(one).any()]
    if not present:
        return None
    estimate = float(np.median(np.concatenate(present)))
    return _bootstrapped(estimate, present, lambda draws: np.median(draws, axis=(1, 2)), confidence, seed)


def ratio_of_sums_interval(values: Sequence[Array], *, confidence: float, seed: int) -> Interval | None:
    """The sum of all numerators over the sum of all denominators, with a percentile bootstrap over launches, then rows.

    Args:
        values: per launch, float64 [rows, 2]: numerator and denominator of each row.
        confidence: of the two-sided interval.
        seed: of the draws.

    Returns:
        None without rows; no bounds for a single row.
    """
    present = [one for one in values if len(one)]
    if not present:
        return None
    numerator, denominator = np.concatenate(present).sum(axis=0)
    rows = sum(len(one) for one in present)
    low = high = None
    if rows > 1:
        sums = _resampled_sums(present, np.random.default_rng(seed))
        low, high = _percentiles(sums[:, 0] / sums[:, 1], confidence)
    estimate = float(numerator / denominator)
    return Interval(estimate=estimate, low=low, high=high, confidence=confidence, launches=len(present), pairs=rows)


def _resampled_sums(launches: Sequence[Array], random: np.random.Generator) -> Array:
    """Draw launches with replacement, then rows within each, as many as it has; the sums of each draw, float64 [RESAMPLES, 2]."""
    chosen = random.integers(len(launches), size=(RESAMPLES, len(launches)))
    sums = np.zeros((RESAMPLES, 2))
    for number, rows in enumerate(launches):
        draws, _ = np.nonzero(chosen == number)
        times_drawn = random.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=len(draws))
        np.add.at(sums, draws, times_drawn @ rows)
    return sums


def _percentiles(draws: Array, confidence: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _bootstrapped(estimate: float, launches: Values, statistic: Callable[[Array], Array], confidence: float, seed: int) -> Interval:
    """``statistic`` reduces draws, float64 [draws, launches, values], to one number a draw."""
    pairs = sum(len(one) for one in launches)
    low = high = None
    if pairs > 1:
        low, high = _percentiles(statistic(_resample(launches, np.random.default_rng(seed))), confidence)
    return Interval(estimate=estimate, low=low, high=high, confidence=confidence, launches=len(launches), pairs=pairs)


def _resample(launches: Values, random: np.random.Generator) -> Array:
    """Draw launches with replacement, then values within each, as many as the longest launch has."""
    lengths = np.array([len(one) for one in launches])
    table = np.full((len(launches), lengths.max()), np.nan)
    for row, one in enumerate(launches):
        table[row, : len(one)] = one
    chosen = random.integers(len(launches), size=(RESAMPLES, len(launches)))
    places = (random.random((*chosen.shape, lengths.max())) * lengths[chosen][..., None]).astype(np.intp)
    return np.asarray(table[chosen[..., None], places])
