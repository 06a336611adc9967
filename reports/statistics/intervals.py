"""From paired blocks to an interval on the ratio of total throughput.

Pure functions of numpy arrays.

What is estimated is what a user pays: in each launch the ratio of all samples over all seconds,
over the rounds that both arms finished, and of the launches' ratios the geometric mean, equally
weighted. Nothing is trimmed: a stall that an arm causes counts with all the time it took. Launches
are not weighted by their precision, which would weigh down just those with stalls. A candidate is
compared with each copy of its baseline by itself, and the log-ratios are averaged.

The noise within a launch comes from its rounds by linearisation of the ratio (Cochran, Sampling
Techniques, 1977, section 6.4), inflated by the correlation of neighbouring rounds. The variance
between launches is what remains, after Paule and Mandel (J. Res. NBS 87, 1982), pooled over all
ratios of a comparison, the control's among them, since a few launches alone give few degrees of
freedom; Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946) allow for ratios that
share their baseline. A single launch has no interval, since its rounds do not tell how much
launches differ. An interval is the widest of three: what the noise of rounds alone allows; the
pooled Student's t; and Student's t of the ratio's own launches, for an arm whose launches vary more
than the others'.

The first two hold for all candidates of a comparison at once (Šidák, JASA 62, 1967). Where a
comparison is analysed again and again, each analysis has a share of the error to spend
(``reports.statistics.budget``): repeated confidence intervals (Jennison and Turnbull, JRSS B 51,
1989).

Beside the interval stand its one-sided bounds, for equivalence by two one-sided tests (Schuirmann,
J. Pharmacokinetics and Biopharmaceutics 15, 1987). At 95% they are those of a 90% interval, made in
the same way.

``benchmarks/interval_coverage.py`` shows by simulation how often all this covers the true ratio of
totals, and what it costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.reasons import Caution
from reports.schema import RatioBySpeed
from reports.statistics.student import (
    Array,
    RatioEstimate,
    both_sides,
    ratio_estimate,
    student_t,
)

Launches = Sequence[Array]
"""One ratio's blocks, a table per launch in order of its rounds: float64 [rounds, arms, 2]. Arm 0
is the candidate, each further one a copy of the baseline; the last axis holds samples and seconds,
NaN where an arm has no block in a round."""


@dataclass(frozen=True, kw_only=True)
class LaunchRatios:
    """One ratio's log-ratios of totals by launch, and the noise within launches."""

    logs: Array
    """One for each launch that has a pair."""
    variance: float
    """Mean squared standard error of ``logs`` by the noise of rounds alone; 0 where no launch has
    two rounds."""
    round_variance: float
    """That of a single round; 0 where no launch has two."""
    residuals: Launches
    """The rounds' influence on their launch's log-ratio (mean over copies), as long as the tables
    given; NaN without a pair."""
    pairs: int
    df: int
    """Degrees of freedom of the rounds' noise, which is pooled over launches."""
    scale: float
    """How much it may be expected to vary between launches, beside others: an arm against one other
    has twice an arm's variance, one against the mean of two only one and a half times."""

    @property
    def launches(self) -> int:
        """How many launches have a pair."""
        return len(self.logs)

    @property
    def squares(self) -> float:
        """Squared deviations of the launches from their mean."""
        return float(((self.logs - self.logs.mean()) ** 2).sum())


def ratio_intervals(
    ratios: Sequence[Launches],
    *,
    confidence: float,
    family: int,
    error_share: float = 1.0,
) -> list[RatioEstimate | None]:
    """The intervals of all ratios of a comparison.

    Args:
        ratios: of the comparison; the candidates first, ``family`` of them, then those that claim
            nothing (the control).
        confidence: with which all candidates' intervals hold at once; the control's holds by
            itself.
        family: the number of candidates.
        error_share: how much of the error may be spent now: all, unless there is another analysis.
    """
    estimates = [launch_ratios(table) for table in ratios]
    pool = [ratio for ratio in estimates if ratio is not None and ratio.launches > 1]
    spread, df = launch_variance(pool), pooled_df(pool)
    spent = 1 - (1 - confidence) * error_share
    claimed = sum(ratio is not None for ratio in estimates[:family])
    return [
        None
        if ratio is None
        else _interval(
            ratio,
            pool,
            spread=spread,
            df=df,
            confidence=confidence,
            spent=spent,
            family=claimed if number < family else 1,
        )
        for number, ratio in enumerate(estimates)
    ]


def launch_ratios(launches: Launches) -> LaunchRatios | None:
    """Each launch's log-ratio of totals and the noise within launches; None without a single
    pair.
    """
    totals = [_total(table) for table in launches]
    logs = np.array([log for log, _, number in totals if number])
    if not len(logs):
        return None
    residuals = [residual for _, residual, _ in totals]
    numbers = np.array([number for _, _, number in totals if number], dtype=np.float64)
    df = int((numbers - 1).sum())
    squares = sum(float(np.nansum(residual**2)) for residual in residuals)
    noise = squares / df * _inflation(residuals) if df else 0.0
    return LaunchRatios(
        logs=logs,
        variance=float((noise / numbers).mean()),
        round_variance=float(noise),
        residuals=residuals,
        pairs=int(numbers.sum()),
        df=df,
        scale=1 + 1 / (launches[0].shape[1] - 1),
    )


def log_ratios(launches: Launches) -> Array:
    """Each launch's log-ratio of totals, float64 [launches]; NaN without a pair."""
    return np.array([log for log, _, _ in map(_total, launches)])


def _total(table: Array) -> tuple[float, Array, int]:
    """One launch's figures: the log-ratio of totals (mean over copies), each round's influence on
    it, the number of rounds.
    """
    logs, influences, numbers = [], [], []
    for copy in range(1, table.shape[1]):
        both = np.isfinite(table[:, [0, copy]]).all(axis=(1, 2))
        if not both.any():
            continue
        (ours, our_s), (theirs, their_s) = table[both, 0].T, table[both, copy].T
        logs.append(float(np.log(ours.sum() / our_s.sum()) - np.log(theirs.sum() / their_s.sum())))
        influence = np.full(len(table), np.nan)
        influence[both] = (ours / ours.mean() - our_s / our_s.mean()) - (
            theirs / theirs.mean() - their_s / their_s.mean()
        )
        influences.append(influence)
        numbers.append(int(both.sum()))
    if not logs:
        return np.nan, np.full(len(table), np.nan), 0
    residuals = np.ma.masked_invalid(np.stack(influences)).mean(axis=0).filled(np.nan)
    return float(np.mean(logs)), np.asarray(residuals), max(numbers)


def _inflation(residuals: Launches) -> float:
    """How much wider neighbouring rounds' correlation makes the mean's variance: (1 + r) / (1 - r),
    never below 1.
    """
    products = sum(float(np.nansum(values[1:] * values[:-1])) for values in residuals)
    squares = sum(float(np.nansum(values**2)) for values in residuals)
    correlation = min(max(products / squares, 0.0), 0.8) if squares > 0 else 0.0
    return (1 + correlation) / (1 - correlation)


def launch_variance(pool: Sequence[LaunchRatios]) -> float:
    """The variance between launches that all ratios share, after Paule and Mandel; 0 where the
    noise of rounds explains it all.

    Newton's steps as in DerSimonian and Kacker (Contemporary Clinical Trials 28, 2007): from 0 they
    never overshoot.
    """
    wanted = sum(ratio.launches - 1 for ratio in pool)
    spread = 0.0
    for _ in range(100):
        excess = _dispersion(pool, spread) - wanted
        if excess <= 1e-9 * wanted:
            break
        spread += excess / sum(
            ratio.scale * ratio.squares / _variance(ratio, spread) ** 2 for ratio in pool
        )
    return spread


def _dispersion(pool: Sequence[LaunchRatios], spread: float) -> float:
    """Squared deviations of the launches from their mean, in units of a launch's variance,
    summed.
    """
    return sum(ratio.squares / _variance(ratio, spread) for ratio in pool)


def _variance(ratio: LaunchRatios, spread: float) -> float:
    """Variance of one launch's log-ratio; the least is there for values without any noise."""
    return max(ratio.variance + ratio.scale * spread, 1e-24)


def pooled_df(pool: Sequence[LaunchRatios]) -> float:
    """Degrees of freedom of the pooled launch variance: fewer than their sum, since ratios that
    share a baseline move together.
    """
    degrees = np.array([ratio.launches - 1.0 for ratio in pool])
    shared = np.array([[_correlation(a, b) ** 2 for b in pool] for a in pool])
    scale = np.sqrt(degrees)
    return float(degrees.sum() ** 2 / (scale @ shared @ scale)) if len(pool) else 0.0


def _correlation(a: LaunchRatios, b: LaunchRatios) -> float:
    """Between two ratios in the same rounds; 1 where it is unknown, which is the cautious
    answer.
    """
    if [len(x) for x in a.residuals] != [len(x) for x in b.residuals]:
        return 1.0
    x, y = np.concatenate(a.residuals), np.concatenate(b.residuals)
    both = np.isfinite(x) & np.isfinite(y)
    norm = float(np.sqrt((x[both] ** 2).sum() * (y[both] ** 2).sum()))
    return float((x[both] * y[both]).sum()) / norm if norm > 0 else 1.0


def _interval(
    ratio: LaunchRatios,
    pool: Sequence[LaunchRatios],
    *,
    spread: float,
    df: float,
    confidence: float,
    spent: float,
    family: int,
) -> RatioEstimate:
    """One ratio's interval: the widest of what the noise of rounds alone allows, the pooled t
    interval, and the t interval of its own launches.

    ``spent`` is the confidence at this analysis, of which ``family`` ratios have their share.
    """
    half_widths = None
    if ratio.launches > 1:
        degrees = ratio.launches - 1
        own_variance = ratio.squares / degrees
        dispersion = min(1.0, _dispersion(pool, spread) / sum(other.launches - 1 for other in pool))
        within, pooled, own = (
            math.sqrt(variance / ratio.launches)
            for variance in (ratio.variance, dispersion * _variance(ratio, spread), own_variance)
        )

        def widest(each: float, alone: float) -> float:
            return max(
                student_t(each, ratio.df) * within if ratio.df else 0.0,
                student_t(each, df) * pooled,
                student_t(alone, degrees) * own,
            )

        each = spent ** (1 / family)
        width = widest(each, spent)
        between = max(ratio.scale * spread, own_variance - ratio.variance)
        half_widths = (
            width,
            widest(both_sides(each), both_sides(spent)),
            math.hypot(width, student_t(confidence, df) * math.sqrt(between)),
        )
    cautions: dict[int, Caution] = {1: "one launch", 2: "two launches"}
    return ratio_estimate(
        float(ratio.logs.mean()),
        half_widths,
        launches=ratio.launches,
        pairs=ratio.pairs,
        caution=cautions.get(ratio.launches),
    )


MIN_FOR_SPEED = 5
"""Launches. Of fewer, hardly any correlation is beyond chance."""


def ratio_by_speed(ratios: Array, speeds: Array, *, confidence: float) -> RatioBySpeed | None:
    """The ratio at low and at high speed, where the two are correlated beyond chance; None where
    they are not, or nothing is known.

    No arm makes the machine's speed: a shared host does, or clocks that change. Where the ratio
    depends on it, a repeat at another time comes out otherwise, and the interval, which takes
    launches for independent, does not hold that time's ratio.

    The t test of Pearson's correlation, which is exact if the ratio does not depend on the speed.
    The speed must be that of an arm which is not in the ratio, as the control is: noise of a shared
    arm would correlate them by itself. ``benchmarks/interval_coverage.py --only speed`` counts
    false and missed ones.

    Args:
        ratios: float64 [launches], logarithms of the candidate's throughput over the baseline's.
        speeds: float64 [launches], logarithms of the control's throughput.
        confidence: 1 − the chance of a false one.
    """
    is_known = np.isfinite(ratios) & np.isfinite(speeds)
    ratios, speeds = ratios[is_known], speeds[is_known]
    if len(ratios) < MIN_FOR_SPEED or not np.ptp(ratios) or not np.ptp(speeds):
        return None
    correlation, freedom = float(np.corrcoef(speeds, ratios)[0, 1]), len(ratios) - 2
    if correlation**2 * freedom <= (1 - correlation**2) * student_t(confidence, freedom) ** 2:
        return None
    ordered, half = ratios[np.argsort(speeds)], len(ratios) // 2
    return RatioBySpeed(
        slower=math.exp(ordered[:half].mean()),
        faster=math.exp(ordered[-half:].mean()),
        speeds=math.exp(np.ptp(speeds)),
    )
