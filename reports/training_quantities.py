"""How figures of training to the end are written for people."""

from __future__ import annotations

from reports.estimate import Estimate
from reports.quantities import NONE, duration, ratio, with_interval


def accuracy(estimate: Estimate | None) -> str:
    """A share of right answers in percent."""
    return NONE if estimate is None else f"{100 * estimate.value:.1f}%"


def accuracy_interval(estimate: Estimate | None) -> str:
    """The same with the half width of its interval, which is symmetric."""
    half = _half_width(estimate)
    return accuracy(estimate) if half is None else f"{accuracy(estimate)} ± {100 * half:.1f}"


def points(estimate: Estimate | None) -> str:
    """A difference of accuracies in percentage points, with the half width of its interval."""
    if estimate is None:
        return NONE
    half = _half_width(estimate)
    value = f"{100 * estimate.value:+.2f}"
    return value if half is None else f"{value} ± {100 * half:.2f}"


def _half_width(estimate: Estimate | None) -> float | None:
    if estimate is None or estimate.ci_low is None or estimate.ci_high is None:
        return None
    return (estimate.ci_high - estimate.ci_low) / 2


def time_ratio(estimate: Estimate | None) -> str:
    """A ratio of times with its interval."""
    return with_interval(estimate, ratio)


def seconds(value: float | None) -> str:
    """A time in the unit that fits."""
    return NONE if value is None else duration(Estimate(value=value))
