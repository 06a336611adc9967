"""From paired blocks to an interval on the ratio of total throughput. Pure functions of numpy arrays.

What is estimated is what a user pays: in each launch the ratio of all samples over all seconds, over the rounds that both arms
finished, and of the launches' ratios the geometric mean, equally weighted. Nothing is trimmed: a stall that an arm causes counts
with all the time it took. Launches are not weighted by their precision, which would weigh down just those with stalls. A candidate
is compared with each copy of its baseline by itself, and the log-ratios are averaged.

The noise within a launch comes from its rounds by linearisation of the ratio (Cochran, Sampling Techniques, 1977, section 6.4),
inflated by the correlation of neighbouring rounds. The variance between launches is what remains, after Paule and Mandel (J. Res.
NBS 87, 1982), pooled over all ratios of a comparison, the control's among them, since a few launches alone give few degrees of
freedom; Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946) allow for ratios that share their baseline. A single
launch has no interval, since its rounds do not tell how much launches differ. An interval is the widest of three: what the noise
of rounds alone allows; the pooled Student's t; and Student's t of the ratio's own launches, for an arm whose launches vary more
than the others'.

The first two hold for all candidates of a comparison at once (Šidák, JASA 62, 1967). Where a comparison is looked at again
and again, each look has a share of the error to spend (``reports.statistics.looks``): repeated confidence intervals (Jennison and
Turnbull, JRSS B 51, 1989).

``benchmarks/interval_coverage.py`` shows by simulation how often all this covers the true ratio of totals, and what it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from reports.estimate import Caution, Estimate

Array = npt.NDArray[np.float64]
Launches = Sequence[Array]
"""One ratio's blocks, a table per launch in order of its rounds: float64 [rounds, arms, 2]. Arm 0 is the candidate, each further
one a copy of the baseline; the last axis holds samples and seconds, NaN where an arm has no block in a round."""

LARGEST_LOG = 50.0
"""Bounds of a ratio lie within e to this power."""
TRIM = 0.2
"""Share of a launch's pairs that the typical ratio leaves out at either end."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with its confidence interval; ``low`` and ``high`` are None where the data cannot carry one."""

    estimate: float
    low: float | None
    high: float | None
    confidence: float
    launches: int
    pairs: int
    run_low: float | None = None
    """What one long run may be expected to come out at, since launches differ: a prediction interval of the same confidence."""
    run_high: float | None = None
    caution: Caution | None = None

    def excludes(self, value: float) -> bool:
        """Whether there is an interval and it lies on one side of ``value``."""
        return self.as_estimate().excludes(value)

    def as_estimate(self) -> Estimate:
        """Value and bounds alone."""
        return Estimate(value=self.estimate, ci_low=self.low, ci_high=self.high)

    def times(self, factor: float) -> Interval:
        """The interval moved by a factor, for 'what if'."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Interval(
            estimate=self.estimate * factor,
            low=low,
            high=high,
            confidence=self.confidence,
            launches=self.launches,
            pairs=self.pairs,
            caution=self.caution,
        )


@dataclass(frozen=True, kw_only=True)
class LaunchRatios:
    """One ratio's log-ratios of totals by launch, and the noise within launches."""

    logs: Array
    """One for each launch that has a pair."""
    variance: float
    """Mean squared standard error of ``logs`` by the noise of rounds alone; 0 where no launch has two rounds."""
    residuals: Launches
    """The rounds' influence on their launch's log-ratio (mean over copies), as long as the tables given; NaN without a pair."""
    pairs: int
    df: int
    """Degrees of freedom of the rounds' noise, which is pooled over launches."""
    scale: float
    """The variance of this ratio between launches, in units of what the pooled ratios share."""

    @property
    def launches(self) -> int:
        """How many launches have a pair."""
        return len(self.logs)

    @property
    def squares(self) -> float:
        """Squared deviations of the launches from their mean."""
        return float(((self.logs - self.logs.mean()) ** 2).sum())


def equal_work(*seconds: Sequence[float]) -> Array:
    """One launch's table of blocks that all did the same work.

    Args:
        seconds: per round, of the candidate's blocks, then of each copy of the baseline's; NaN where there is none.
    """
    times = np.stack([np.asarray(one, dtype=np.float64) for one in seconds], axis=-1)
    return np.stack([np.where(np.isnan(times), np.nan, 1.0), times], axis=-1)


def ratio_interval(launches: Launches, *, confidence: float, companions: Sequence[Launches] = ()) -> Interval | None:
    """The geometric mean over launches of the ratio of totals, with its interval.

    Args:
        launches: of the ratio asked for.
        confidence: of the two-sided interval, for instance 0.95.
        companions: the other ratios of the same comparison; they help to estimate the variance between launches.

    Returns:
        The interval on the scale of ratios, without bounds where there is one launch; None where there is no pair at all.
    """
    return ratio_intervals([launches, *companions], confidence=confidence, family=1)[0]


def ratio_intervals(
    ratios: Sequence[Launches], *, confidence: float, scales: Sequence[float] = (), family: int, error_share: float = 1.0
) -> list[Interval | None]:
    """The intervals of all ratios of a comparison.

    Args:
        ratios: of the comparison; the candidates first, ``family`` of them, then those that claim nothing (the control).
        confidence: with which all candidates' intervals hold at once; the control's holds by itself.
        scales: how much each ratio may be expected to vary between launches, beside the others: an arm against one other has
            twice an arm's variance, one against the mean of two only one and a half times. Empty: all alike.
        family: the number of candidates.
        error_share: how much of the error may be spent now: all, unless it is looked at again (``reports.statistics.looks``).
    """
    found = [launch_ratios(table, scale=scale) for table, scale in zip(ratios, scales or [1.0] * len(ratios), strict=True)]
    pool = [one for one in found if one is not None and one.launches > 1]
    spread = launch_variance(pool)
    df = pooled_df(pool)
    spent = 1 - (1 - confidence) * error_share
    claimed = sum(one is not None for one in found[:family])
    members = [claimed if number < family else 1 for number in range(len(ratios))]
    return [
        None if one is None else _interval(one, pool, spread=spread, df=df, confidence=confidence, spent=spent, family=size)
        for one, size in zip(found, members, strict=True)
    ]


def launch_ratios(launches: Launches, *, scale: float = 1.0) -> LaunchRatios | None:
    """Each launch's log-ratio of totals and the noise within launches; None without a single pair."""
    found = [_total(table) for table in launches]
    logs = np.array([log for log, _, number in found if number])
    if not len(logs):
        return None
    residuals = [residual for _, residual, _ in found]
    numbers = np.array([number for _, _, number in found if number], dtype=np.float64)
    df = int((numbers - 1).sum())
    squares = sum(float(np.nansum(residual**2)) for residual in residuals)
    noise = squares / df * _inflation(residuals) if df else 0.0
    return LaunchRatios(
        logs=logs,
        variance=float((noise / numbers).mean()),
        residuals=residuals,
        pairs=int(numbers.sum()),
        df=df,
        scale=scale,
    )


def _total(table: Array) -> tuple[float, Array, int]:
    """Of one launch: the log-ratio of totals (mean over copies), each round's influence on it, the number of rounds."""
    logs, influences, numbers = [], [], []
    for copy in range(1, table.shape[1]):
        both = np.isfinite(table[:, [0, copy]]).all(axis=(1, 2))
        if not both.any():
            continue
        (ours, our_s), (theirs, their_s) = table[both, 0].T, table[both, copy].T
        logs.append(float(np.log(ours.sum() / our_s.sum()) - np.log(theirs.sum() / their_s.sum())))
        influence = np.full(len(table), np.nan)
        influence[both] = (ours / ours.mean() - our_s / our_s.mean()) - (theirs / theirs.mean() - their_s / their_s.mean())
        influences.append(influence)
        numbers.append(int(both.sum()))
    if not logs:
        return np.nan, np.full(len(table), np.nan), 0
    residuals = np.ma.masked_invalid(np.stack(influences)).mean(axis=0).filled(np.nan)
    return float(np.mean(logs)), np.asarray(residuals), max(numbers)


def typical_ratio(launches: Launches) -> float | None:
    """What a usual block shows: over launches the geometric mean of the pairs' trimmed mean log-ratios; None without pairs."""
    means = []
    for table in launches:
        rates = np.log(table[..., 0] / table[..., 1])
        copies = [trimmed_mean(rates[:, 0] - rates[:, copy]) for copy in range(1, table.shape[1])]
        present = [mean for mean in copies if mean is not None]
        if present:
            means.append(np.mean(present))
    return float(np.exp(np.mean(means))) if means else None


def trimmed_mean(values: Array) -> float | None:
    """The mean without ``TRIM`` of the values at either end; None without a finite value."""
    ordered = np.sort(values[np.isfinite(values)])
    cut = int(TRIM * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean()) if len(ordered) else None


def _inflation(residuals: Launches) -> float:
    """How much wider neighbouring rounds' correlation makes the mean's variance: (1 + r) / (1 - r), never below 1."""
    products = sum(float(np.nansum(values[1:] * values[:-1])) for values in residuals)
    squares = sum(float(np.nansum(values**2)) for values in residuals)
    correlation = min(max(products / squares, 0.0), 0.8) if squares > 0 else 0.0
    return (1 + correlation) / (1 - correlation)


def launch_variance(pool: Sequence[LaunchRatios]) -> float:
    """The variance between launches that all ratios share, after Paule and Mandel; 0 where the noise of rounds explains it all.

    Newton's steps as in DerSimonian and Kacker (Contemporary Clinical Trials 28, 2007): from 0 they never overshoot.
    """
    wanted = sum(one.launches - 1 for one in pool)
    spread = 0.0
    for _ in range(100):
        excess = _dispersion(pool, spread) - wanted
        if excess <= 1e-9 * wanted:
            break
        spread += excess / sum(one.scale * one.squares / _variance(one, spread) ** 2 for one in pool)
    return spread


def _dispersion(pool: Sequence[LaunchRatios], spread: float) -> float:
    """Squared deviations of the launches from their mean, in units of a launch's variance, summed."""
    return sum(one.squares / _variance(one, spread) for one in pool)


def _variance(one: LaunchRatios, spread: float) -> float:
    """Of one launch's log-ratio; the floor is there for values without any noise."""
    return max(one.variance + one.scale * spread, 1e-24)


def pooled_df(pool: Sequence[LaunchRatios]) -> float:
    """Degrees of freedom of the pooled launch variance: fewer than their sum, since ratios that share a baseline move together."""
    degrees = np.array([one.launches - 1.0 for one in pool])
    shared = np.array([[_correlation(a, b) ** 2 for b in pool] for a in pool])
    scale = np.sqrt(degrees)
    return float(degrees.sum() ** 2 / (scale @ shared @ scale)) if len(pool) else 0.0


def _correlation(a: LaunchRatios, b: LaunchRatios) -> float:
    """Between two ratios in the same rounds; 1 where that cannot be told, which is the cautious answer."""
    if a is b:
        return 1.0
    if [len(x) for x in a.residuals] != [len(x) for x in b.residuals]:
        return 1.0
    x, y = np.concatenate(a.residuals), np.concatenate(b.residuals)
    both = np.isfinite(x) & np.isfinite(y)
    norm = float(np.sqrt((x[both] ** 2).sum() * (y[both] ** 2).sum()))
    return float((x[both] * y[both]).sum()) / norm if norm > 0 else 1.0


def _interval(
    one: LaunchRatios,
    pool: Sequence[LaunchRatios],
    *,
    spread: float,
    df: float,
    confidence: float,
    spent: float,
    family: int,
) -> Interval:
    """One ratio's interval. ``spent`` is the confidence at this look, of which ``family`` ratios have their share."""
    centre = float(one.logs.mean())
    half = run = None
    if one.launches > 1:
        each = spent ** (1 / family)
        half = _half_width(one, pool, spread=spread, df=df, each=each, alone=spent)
        run = float(np.hypot(half, student_t(confidence, df) * np.sqrt(max(one.scale * spread, _own_spread(one)))))
    cautions: dict[int, Caution] = {1: "one launch", 2: "two launches"}
    low, high = around(centre, half)
    run_low, run_high = around(centre, run)
    return Interval(
        estimate=float(np.exp(centre)),
        low=low,
        high=high,
        run_low=run_low,
        run_high=run_high,
        confidence=confidence,
        launches=one.launches,
        pairs=one.pairs,
        caution=cautions.get(one.launches),
    )


def around(centre: float, half: float | None) -> tuple[float | None, float | None]:
    """From a log-ratio and half a width to bounds of the ratio, which are finite however wide that is."""
    if half is None:
        return None, None
    low, high = np.exp(np.clip([centre - half, centre + half], -LARGEST_LOG, LARGEST_LOG))
    return float(low), float(high)


def _half_width(one: LaunchRatios, pool: Sequence[LaunchRatios], *, spread: float, df: float, each: float, alone: float) -> float:
    """The widest of: what the noise of rounds alone allows, the pooled t interval, the t interval of its own launches."""
    within = student_t(each, one.df) * float(np.sqrt(one.variance / one.launches)) if one.df else 0.0
    dispersion = min(1.0, _dispersion(pool, spread) / sum(other.launches - 1 for other in pool))
    pooled = student_t(each, df) * float(np.sqrt(dispersion * _variance(one, spread) / one.launches))
    degrees = one.launches - 1
    own = student_t(alone, degrees) * float(np.sqrt(one.squares / degrees / one.launches))
    return max(within, pooled, own)


def _own_spread(one: LaunchRatios) -> float:
    """The variance between launches by this ratio's own alone."""
    return max(one.squares / (one.launches - 1) - one.variance, 0.0)


def student_t(confidence: float, df: float) -> float:
    """Student's t for a two-sided interval."""
    return float(special.stdtrit(df, (1 + confidence) / 2))
