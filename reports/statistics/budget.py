"""How long to measure: how many rounds a launch shall have, when to analyse, and how much more a
verdict needs.

Numbers in, numbers out.

A launch costs S seconds besides its rounds, and c seconds a round. Where one round's log-ratio has
the standard deviation s within a launch and launches differ by l, the best number of rounds is
sqrt(S / c) * s / l (Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013;
arXiv 2007.10899, with its erratum). That holds for many launches. Student's t asks for more
launches where few fit, so the number is chosen that makes the expected half-width t * sqrt(sum of
the launches' variances) / launches least.

No choice of a length sees a ratio. Variances do not show which arm is faster, so that a choice by
them leaves the promised error as it is. ``benchmarks/interval_coverage.py --only budget`` shows by
simulation that it does, and what is lost to the best fixed choice.

Verdicts before the last launch decide whether to measure on, and cost: every analysis may be the
lucky one. Analysis j may spend 1 / (j (j + 1)) of the promised error, which sums to 1 over any
number of them (``reports.statistics.intervals``). They come after 5, 7, 10, 14, 20, ... launches:
few launches estimate their own variance badly, and an analysis after each would cost more than it
brings. A comparison of a fixed number of launches spends all of it on its only analysis; whoever
then measures on spends more.

How much more a verdict needs follows from the interval so far, if the estimate stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special
from scipy.optimize import brentq
from scipy.special import chdtri

from reports.parts_schema import Estimate
from reports.statistics.intervals import LaunchRatios, launch_variance, pooled_df
from reports.statistics.student import Array, student_t

MIN_ROUNDS, MAX_ROUNDS = 4, 60
PILOTS = 3
"""Launches before the first choice. They count as all others do."""
MAX_LAUNCHES = 10_000
USUAL_RATIO = 3.5
"""A round's deviation over that of launches, before it is known: 13 to 16% over 3 to 5% in the
default plan on two cores."""
USUAL_DEGREES = 4.0
"""For how many degrees of freedom of a launch variance that counts beside what was found."""

MAX_MORE = 24 * 60.0
"""Minutes, or runs; beyond this, 'measure longer' is no advice."""
MIN_LAUNCHES = 3
"""The fewest launches from which the number of further ones can be estimated."""
CONFIDENCE = 0.95
"""At which Student's t falls with more launches; at others it falls nearly as fast."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a launch takes."""

    start_s: float
    """Besides its rounds: start, gate, end."""
    round_s: float


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How much log-ratios vary, the mean over the ratios of a comparison."""

    round_variance: float
    """Variance of a single round within its launch."""
    launch_variance: float
    """Variance of launches, beyond what their rounds explain."""
    degrees: float
    """Degrees of freedom of ``launch_variance``."""

    @property
    def expected(self) -> Spread:
        """These variances, with that of launches drawn towards the usual one: three launches hardly
        determine it.
        """
        usual = self.round_variance / USUAL_RATIO**2
        measured, assumed = self.degrees * self.launch_variance, USUAL_DEGREES * usual
        variance = (measured + assumed) / (self.degrees + USUAL_DEGREES)
        return replace(self, launch_variance=variance)

    def of_launches(self, rounds: Array) -> Array:
        """The variance of a log-ratio in launches of so many rounds."""
        return self.launch_variance + self.round_variance / rounds


UNKNOWN = Spread(round_variance=1.0, launch_variance=0.0, degrees=0.0)
"""Before two launches are measured: the usual ratio of both is expected, and their size does not
matter."""


@dataclass(frozen=True, kw_only=True)
class Length:
    """What was chosen."""

    rounds: int
    """Rounds of the next launch."""
    launches: int
    """That are still to come, this one included, as far as can be seen."""


def spread_of(pool: Sequence[LaunchRatios]) -> Spread:
    """The spread of these ratios; ``UNKNOWN`` where no launch has two rounds, or none has a second
    launch.
    """
    rounds = [ratios.round_variance for ratios in pool if ratios.df]
    several = [ratios for ratios in pool if ratios.launches > 1]
    if not several or not any(rounds):
        return UNKNOWN
    scale = float(np.mean([ratios.scale for ratios in several]))
    between = launch_variance(several) * scale
    return Spread(
        round_variance=float(np.mean(rounds)), launch_variance=between, degrees=pooled_df(several)
    )


def choose(done: Sequence[int], *, cost: Cost, spread: Spread, left_s: float) -> Length | None:
    """How many rounds the next launch shall have.

    ``done``: rounds of each launch that was measured, two at least.

    Returns:
        None: no launch is left that would fit and make the interval narrower.
    """
    most = _max_launches(cost, left_s)
    if most < 1:
        return None
    length, half = _narrowest(done, range(1, most + 1), cost=cost, spread=spread, left_s=left_s)
    return (
        length
        if half < _half_width(spread.expected.of_launches(np.array(done)).sum(), launches=len(done))
        else None
    )


def pilot(cost: Cost, *, left_s: float, done: Sequence[int] = (), owed: int = PILOTS) -> Length:
    """How many rounds a launch shall have before variances are known: the best number if they are
    as usual.

    ``done``: rounds of each pilot that was measured. ``owed``: pilots to be made, this one
    included, whatever time is left.
    """
    return _narrowest(
        done,
        range(owed, max(_max_launches(cost, left_s), owed) + 1),
        cost=cost,
        spread=UNKNOWN,
        left_s=left_s,
    )[0]


def seconds_for(half: float, *, cost: Cost, spread: Spread) -> float | None:
    """The least seconds in which the interval of a log-ratio has this half-width, as far as can be
    seen; None: more than a day.
    """
    for seconds in (60.0 * 1.1**power for power in range(77)):
        most = _max_launches(cost, seconds)
        if (
            most >= PILOTS
            and _narrowest((), range(PILOTS, most + 1), cost=cost, spread=spread, left_s=seconds)[1]
            <= half
        ):
            return seconds
    return None


def _max_launches(cost: Cost, left_s: float) -> int:
    """How many launches fit, be they as short as they may."""
    return min(int(left_s / (cost.start_s + MIN_ROUNDS * cost.round_s)), MAX_LAUNCHES)


def _half_width(variances: float | Array, *, launches: float | Array) -> Array:
    """The half-width of an interval over launches whose variances have this sum, by Student's t."""
    return np.asarray(special.stdtrit(launches - 1, 0.975) * np.sqrt(variances) / launches)


def _narrowest(
    done: Sequence[int], later: range, *, cost: Cost, spread: Spread, left_s: float
) -> tuple[Length, float]:
    """The best of these numbers of launches to come, which share what is left alike, and the
    half-width to be expected.
    """
    expected, number = spread.expected, np.array(later)
    rounds = np.minimum(np.floor((left_s / number - cost.start_s) / cost.round_s), MAX_ROUNDS).clip(
        MIN_ROUNDS
    )
    variances = expected.of_launches(np.array(done)).sum() + number * expected.of_launches(rounds)
    half = _half_width(variances, launches=len(done) + number)
    best = int(np.argmin(half))
    return Length(rounds=int(rounds[best]), launches=int(number[best])), float(half[best])


FIRST_ANALYSIS = 5
ANALYSIS_GROWTH = 1.4


def error_share(analyses: Sequence[int], *, until_decided: bool) -> float:
    """The share of the error that the last analysis may spend.

    ``until_decided``: whether it was planned to analyse again if need be.
    """
    number = max(len(analyses), 1)
    return 1.0 if number == 1 and not until_decided else 1 / (number * (number + 1))


def next_analysis(analyses: Sequence[int], *, launches: int) -> int:
    """The number of launches at the next analysis.

    ``launches`` is the plan's number, before which there is nothing to decide.
    """
    earliest = math.ceil(ANALYSIS_GROWTH * analyses[-1]) if analyses else FIRST_ANALYSIS
    return max(earliest, launches)


@dataclass(frozen=True, kw_only=True)
class RequiredMeasuring:
    """How much to add to what was measured, in the same unit, and how far that is known."""

    value: float | None
    """None: more than ``MAX_MORE``."""
    low: float
    high: float | None
    """None: more than ``MAX_MORE``."""


def to_decide(
    interval: Estimate | None, *, threshold: float, measured: float, launches: int
) -> RequiredMeasuring | None:
    """How much to add to what was measured, minutes or runs of each arm, until there should be a
    verdict, if the estimate stays.

    The half-width goes as Student's t over the square root of the launches, both of which more of
    them improve. It follows from the spread of a few launches, which is known by a factor only: the
    range holds it at 80%, by the chi-squared distribution of a variance.
    ``benchmarks/interval_coverage.py --only promise`` compares this with what it takes.

    Returns:
        None where nothing can be said: no interval yet, fewer than ``MIN_LAUNCHES`` launches, or an
        estimate so near the threshold that it would take ``MAX_MORE``.
    """
    too_wide = _too_wide(interval, threshold=threshold)
    if too_wide is None or measured <= 0 or launches < MIN_LAUNCHES:
        return None
    freedom = launches - 1
    factors = (1.0, freedom / chdtri(freedom, 0.1), freedom / chdtri(freedom, 0.9))
    needed = (_launches_for(too_wide * math.sqrt(float(factor)), launches) for factor in factors)
    value, least, most = (measured * (number / launches - 1) for number in needed)
    if least > MAX_MORE:
        return None
    return RequiredMeasuring(
        value=value if value <= MAX_MORE else None,
        low=least,
        high=most if most <= MAX_MORE else None,
    )


def _launches_for(too_wide: float, launches: int) -> float:
    """How many launches make an interval of so many of them that is too wide by a factor as narrow
    as it must be.
    """
    if too_wide <= 1:
        return launches

    def half_width(number: float) -> float:
        return student_t(CONFIDENCE, number - 1) / math.sqrt(number)

    wanted = half_width(launches) / too_wide
    return float(
        brentq(lambda number: half_width(number) - wanted, launches, launches * too_wide**2)
    )


def _too_wide(interval: Estimate | None, *, threshold: float) -> float | None:
    """The half-width over that which a verdict needs; None where that is unknown."""
    if interval is None or interval.bounds is None:
        return None
    distance = abs(interval.value - 1)
    is_apart = distance >= threshold
    wanted = abs(math.log(interval.value)) if is_apart else threshold - distance
    low, high = interval.bounds if is_apart else (interval.one_sided or interval.bounds)
    return math.log(high / low) / 2 / wanted if wanted > 0 else None
