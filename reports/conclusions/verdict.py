"""The verdict that an interval gives, the control's veto, and how much longer to measure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.optimize import brentq
from scipy.special import chdtri

from reports.parts_schema import Estimate
from reports.schema import Verdict
from reports.statistics.student import student_t

MAX_MORE = 24 * 60.0
"""Minutes, or runs; beyond this, 'measure longer' is no advice."""
MIN_LAUNCHES = 3
"""The fewest launches from which the number of further ones can be estimated."""
CONFIDENCE = 0.95
"""At which Student's t falls with more launches; at others it falls nearly as fast."""
LOAD_POWER = 2
"""Load may slow one arm by its share of the cores, and once more since ranks wait for each other;
and another arm not at all."""
MAX_LOAD = 0.99
"""A share of the cores beyond this counts as this much."""


def decide(
    interval: Estimate | None, *, threshold: float, control: Estimate | None = None
) -> Verdict:
    """The verdict on a candidate relative to its baseline, by the interval of their ratio; None:
    there is no timing.

    Faster and slower take the two-sided interval. Equivalence is two one-sided tests against the
    threshold: a ratio within ±this of 1 is of no practical interest. Where the control's interval
    excludes 1, no smaller claim is made.
    """
    if interval is None or interval.bounds is None:
        return "undecided"
    low, high = interval.bounds
    least, most = interval.one_sided or (0.0, math.inf)
    verdict: Verdict = "undecided"
    if low > 1 and interval.value >= 1 + threshold:
        verdict = "faster"
    elif high < 1 and interval.value <= 1 - threshold:
        verdict = "slower"
    elif 1 - threshold <= least and most <= 1 + threshold:
        verdict = "equivalent"
    claim = threshold if verdict == "equivalent" else abs(math.log(interval.value))
    is_vetoed = control is not None and control.excludes(1.0) and claim <= farthest(control)
    return "undecided" if is_vetoed else verdict


def farthest(interval: Estimate | None) -> float:
    """How far an interval reaches from 1, as a log-ratio; 0 without one."""
    bounds = interval.bounds if interval else None
    return max(abs(math.log(bound)) for bound in bounds) if bounds else 0.0


def reach_of_load(share: float, control: Estimate | None) -> float:
    """How large a log-ratio load alone may make between arms that are alike.

    ``share``: of the cores, that others took in the disturbed blocks. The control may reach farther
    from 1 than it accounts for.
    """
    return LOAD_POWER * max(-math.log1p(-min(share, MAX_LOAD)), farthest(control))


def exceeds_margin(interval: Estimate, reach: float) -> bool:
    """Whether the whole interval is farther from 1 than ``reach``, a log-ratio."""
    return (
        interval.bounds is not None
        and max(math.log(interval.bounds[0]), -math.log(interval.bounds[1])) > reach
    )


def is_uninformative(interval: Estimate | None, other: Estimate) -> bool:
    """Whether an interval is missing, or so wide that it excludes neither 1 nor the estimate of the
    other.
    """
    return interval is None or not (interval.excludes(1.0) or interval.excludes(other.value))


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
    if measured <= 0 or launches < MIN_LAUNCHES:
        return None
    too_wide = _too_wide(interval, threshold=threshold)
    if too_wide is None:
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
