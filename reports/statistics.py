"""From paired log-ratios to an interval on their geometric mean. Pure functions of numpy arrays.

Refuses to guess: where the data cannot carry an interval, its bounds are None.

Within a launch, the location of the log-ratios is their 20% trimmed mean, with the Winsorised standard error of Tukey and
McLaughlin (Sankhya A 25, 1963; Yuen, Biometrika 61, 1974): on a shared machine a few blocks in a hundred are hit by a
neighbour, and a plain mean of such noise wastes a third of the measuring time or more. What is trimmed must be symmetric where
both sides are alike, and blocks are hit on one side only: a block minus the mean of two others is not, so a candidate is
held against each copy of its baseline by itself, and the trimmed means are averaged. Launches are combined as the studies
of a random-effects meta-analysis: the variance between launches after Paule and Mandel (J. Res. NBS 87, 1982), the interval
after Hartung and Knapp (Statistics in Medicine 20, 2001) with Student's t over launches, and never narrower than the noise
of the pairs alone allows.

Three launches tell a variance with two degrees of freedom only. It is therefore pooled over all ratios of a comparison, the
control's among them, with Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946), which allow for the correlation
of ratios that share their baseline. Should one arm's launches differ more than the others', its own t interval at twice the
error rate is a lower bound: a 95% interval then still covers in about 90% of cases, however unlike the arms are.

``benchmarks/interval_coverage.py`` compares this by simulation with the percentile bootstrap over launches and pairs, which
covers too seldom where launches differ and too often where they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]
Launches = Sequence[Array]
"""One ratio's log-ratios per launch, in order of its rounds: float64 [rounds], or [rounds, copies] where the baseline has
several; NaN where a round has no pair."""

TRIM = 0.2
"""Share of a launch's pairs that is left out at either end."""
RESAMPLES = 1000
"""Bootstrap draws for medians."""
ONE_LAUNCH = "one launch: how much launches differ is not known, so the interval may be too narrow"
ONE_PAIR = "a single pair carries no interval"


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with its confidence interval; ``low`` and ``high`` are None where the data cannot carry one."""

    estimate: float
    low: float | None
    high: float | None
    confidence: float
    launches: int
    pairs: int
    note: str | None = None

    def excludes(self, value: float) -> bool:
        """Whether there is an interval and it lies on one side of ``value``."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


@dataclass(frozen=True, kw_only=True)
class Locations:
    """One ratio's units (launches, or the single pairs of launches that have one each) and the noise within them."""

    means: Array
    variances: Array
    """Squared standard errors of ``means`` by the noise of pairs alone."""
    residuals: Launches
    """Winsorised deviations of the rounds (mean over copies), as long as the launches that were given; NaN without a pair."""
    launches: int
    pairs: int
    df: int
    """Degrees of freedom of the pair noise, which is pooled over launches."""
    scale: float = 1.0
    """The variance of this ratio between launches, in units of what the pooled ratios share."""


def ratio_interval(log_ratios: Launches, *, confidence: float, companions: Sequence[Launches] = ()) -> Interval | None:
    """The geometric mean of paired ratios with its interval.

    Args:
        log_ratios: of the ratio asked for.
        confidence: of the two-sided interval, for instance 0.95.
        companions: the other ratios of the same comparison; they help to estimate the variance between launches.

    Returns:
        The interval on the scale of ratios; None where there is no pair at all.
    """
    return ratio_intervals([log_ratios, *companions], confidence=confidence)[0]


def ratio_intervals(ratios: Sequence[Launches], *, confidence: float, scales: Sequence[float] = ()) -> list[Interval | None]:
    """``ratio_interval`` of every ratio of a comparison, each with the others as companions.

    Args:
        ratios: of the comparison.
        confidence: of the two-sided intervals.
        scales: how much each ratio may be expected to vary between launches, beside the others: an arm against one other has
            twice an arm's variance, one against the mean of two only one and a half times. Empty: all alike.
    """
    located = [locate(launches, scale=scale) for launches, scale in zip(ratios, scales or [1.0] * len(ratios), strict=True)]
    pool = [one for one in located if one is not None and len(one.means) > 1]
    spread = launch_variance(pool)
    df = pooled_df(pool)
    return [None if one is None else _interval(one, pool, spread, df, confidence) for one in located]


def locate(log_ratios: Launches, *, scale: float = 1.0) -> Locations | None:
    """Each launch's trimmed mean and its variance; None without a single pair.

    The noise of the pairs is pooled over launches, since one may have been cut short, and inflated by the correlation of
    neighbouring pairs. Launches of one pair each (sequential mode) are taken as the pairs of one launch.
    """
    tables = [values if values.ndim == 2 else values[:, None] for values in log_ratios]
    numbers = np.array([int(np.isfinite(table).any(axis=1).sum()) for table in tables])
    launches = int((numbers > 0).sum())
    if launches == 0:
        return None
    units = [np.concatenate(tables)] if numbers.max() == 1 else tables
    found = [_trimmed(table) for table in units]
    residuals = [residual for _, residual, _ in found]
    kept = np.array([number for _, _, number in found if number], dtype=np.float64)
    df = int((kept - 1).sum())
    squares = sum(float(np.nansum(residual**2)) for residual in residuals)
    noise = squares / df * _inflation(residuals) if df else 0.0
    means = np.array([mean for mean, _, number in found if number])
    pairs = int(numbers.sum())
    return Locations(means=means, variances=noise / kept, residuals=residuals, launches=launches, pairs=pairs, df=df, scale=scale)


def _trimmed(table: Array) -> tuple[float, Array, int]:
    """Of log-ratios [rounds, copies]: the copies' trimmed means averaged, the rounds' deviations, how many were not trimmed."""
    copies = [_trimmed_copy(values) for values in table.T]
    numbers = [number for _, _, number in copies]
    if not any(numbers):
        return np.nan, np.full(len(table), np.nan), 0
    mean = float(np.average([mean for mean, _, number in copies if number], weights=[number for number in numbers if number]))
    residuals = np.ma.masked_invalid(np.stack([residual for _, residual, _ in copies])).mean(axis=0).filled(np.nan)
    return mean, np.asarray(residuals), max(numbers)


def _trimmed_copy(values: Array) -> tuple[float, Array, int]:
    """Trimmed mean, Winsorised deviations from their own mean (in place, NaN kept) and the number of values not trimmed."""
    ordered = np.sort(values[np.isfinite(values)])
    if not len(ordered):
        return np.nan, values, 0
    cut = int(TRIM * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    winsorised = np.clip(values, kept[0], kept[-1])
    return float(kept.mean()), winsorised - np.nanmean(winsorised), len(kept)


def _inflation(residuals: Launches) -> float:
    """How much wider neighbouring pairs' correlation makes the mean's variance: (1 + r) / (1 - r), never below 1."""
    products = sum(float(np.nansum(values[1:] * values[:-1])) for values in residuals)
    squares = sum(float(np.nansum(values**2)) for values in residuals)
    correlation = min(max(products / squares, 0.0), 0.8) if squares > 0 else 0.0
    return (1 + correlation) / (1 - correlation)


def launch_variance(pool: Sequence[Locations]) -> float:
    """The variance between launches that all ratios share, after Paule and Mandel; 0 where pair noise explains it all.

    Newton's steps as in DerSimonian and Kacker (Contemporary Clinical Trials 28, 2007): from 0 they never overshoot.
    """
    wanted = sum(len(one.means) - 1 for one in pool)
    spread = 0.0
    for _ in range(100):
        excess = _dispersion(pool, spread) - wanted
        if excess <= 1e-9 * wanted:
            break
        spread += excess / sum(float((one.scale * _weights(one, spread) ** 2 * _deviations(one, spread)).sum()) for one in pool)
    return spread


def _dispersion(pool: Sequence[Locations], spread: float) -> float:
    """Cochran's Q, summed: squared deviations of launches from their weighted mean, in units of their expectation."""
    return sum(float((_weights(one, spread) * _deviations(one, spread)).sum()) for one in pool)


def _deviations(one: Locations, spread: float) -> Array:
    """Squared deviations of the launches from their weighted mean."""
    return np.asarray((one.means - _centre(one, spread)) ** 2)


def _centre(one: Locations, spread: float) -> float:
    weights = _weights(one, spread)
    return float(weights @ one.means / weights.sum())


def _weights(one: Locations, spread: float) -> Array:
    """Reciprocal variances of the launches; the floor is there for values without any noise."""
    return np.asarray(1.0 / np.maximum(one.variances + one.scale * spread, 1e-24))


def pooled_df(pool: Sequence[Locations]) -> float:
    """Degrees of freedom of the pooled launch variance: fewer than their sum, since ratios that share a baseline move together."""
    degrees = np.array([len(one.means) - 1.0 for one in pool])
    shared = np.array([[_correlation(a, b) ** 2 for b in pool] for a in pool])
    scale = np.sqrt(degrees)
    return float(degrees.sum() ** 2 / (scale @ shared @ scale)) if len(pool) else 0.0


def _correlation(a: Locations, b: Locations) -> float:
    """Between two ratios' pairs of the same rounds; 1 where that cannot be told, which is the cautious answer."""
    if a is b:
        return 1.0
    if [len(x) for x in a.residuals] != [len(x) for x in b.residuals]:
        return 1.0
    x, y = np.concatenate(a.residuals), np.concatenate(b.residuals)
    both = np.isfinite(x) & np.isfinite(y)
    norm = float(np.sqrt((x[both] ** 2).sum() * (y[both] ** 2).sum()))
    return float((x[both] * y[both]).sum()) / norm if norm > 0 else 1.0


def _interval(one: Locations, pool: Sequence[Locations], spread: float, df: float, confidence: float) -> Interval:
    """One ratio's interval from its own launches and what the pool tells of the variance between launches."""
    centre = _centre(one, spread)
    half, note = None, None
    if len(one.means) > 1:
        half = _half_width(one, pool, spread, df, confidence)
    elif one.df:
        half = _quantile(confidence, one.df) * float(np.sqrt(one.variances[0]))
    if one.launches == 1:
        note = ONE_LAUNCH if one.df else ONE_PAIR
    return Interval(
        estimate=float(np.exp(centre)),
        low=None if half is None else float(np.exp(centre - half)),
        high=None if half is None else float(np.exp(centre + half)),
        confidence=confidence,
        launches=one.launches,
        pairs=one.pairs,
        note=note,
    )


def _half_width(one: Locations, pool: Sequence[Locations], spread: float, df: float, confidence: float) -> float:
    """The widest of: what pair noise alone allows, the pooled t interval, the own t interval at twice the error rate."""
    within = _quantile(confidence, one.df) * float(np.sqrt(1 / _weights(one, 0.0).sum())) if one.df else 0.0
    dispersion = min(1.0, _dispersion(pool, spread) / sum(len(other.means) - 1 for other in pool))
    pooled = _quantile(confidence, df) * float(np.sqrt(dispersion / _weights(one, spread).sum()))
    if len(pool) == 1:
        return max(within, pooled)
    degrees = len(one.means) - 1
    own = _dispersion([one], spread) / degrees / _weights(one, spread).sum()
    return max(within, pooled, _quantile(2 * confidence - 1, degrees) * float(np.sqrt(own)))


def _quantile(confidence: float, df: float) -> float:
    """Student's t for a two-sided interval."""
    return float(special.stdtrit(df, (1 + confidence) / 2))


def median_interval(values: Launches, *, confidence: float, seed: int) -> Interval | None:
    """The median of all launches' values with a percentile bootstrap over launches, then values; None without values.

    Descriptive: not for verdicts. ``seed`` is that of the draws.
    """
    present = [one[np.isfinite(one)] for one in values if np.isfinite(one).any()]
    if not present:
        return None
    estimate = float(np.median(np.concatenate(present)))
    return _bootstrapped(estimate, present, lambda draws: np.median(draws, axis=(1, 2)), confidence, seed)


def median_of_means_interval(values: Launches, *, confidence: float, seed: int) -> Interval | None:
    """The median of the launches' means, with an interval as in ``median_interval``."""
    present = [one[np.isfinite(one)] for one in values if np.isfinite(one).any()]
    if not present:
        return None
    estimate = float(np.median([one.mean() for one in present]))
    return _bootstrapped(estimate, present, lambda draws: np.median(draws.mean(axis=2), axis=1), confidence, seed)


def _bootstrapped(
    estimate: float, launches: Launches, statistic: Callable[[Array], Array], confidence: float, seed: int
) -> Interval:
    """``statistic`` reduces draws, float64 [draws, launches, values], to one number a draw."""
    pairs = sum(len(one) for one in launches)
    low = high = None
    if pairs > 1:
        draws = statistic(_resample(launches, np.random.default_rng(seed)))
        low, high = (float(q) for q in np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2]))
    return Interval(estimate=estimate, low=low, high=high, confidence=confidence, launches=len(launches), pairs=pairs)


def _resample(launches: Launches, random: np.random.Generator) -> Array:
    """Launches drawn with replacement, then values within each, as many as the longest launch has."""
    lengths = np.array([len(one) for one in launches])
    table = np.full((len(launches), lengths.max()), np.nan)
    for row, one in enumerate(launches):
        table[row, : len(one)] = one
    chosen = random.integers(len(launches), size=(RESAMPLES, len(launches)))
    places = (random.random((*chosen.shape, lengths.max())) * lengths[chosen][..., None]).astype(np.intp)
    return np.asarray(table[chosen[..., None], places])
