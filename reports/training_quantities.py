"""How figures of training to the end are written for people."""

from __future__ import annotations

from reports.estimate import Estimate
from reports.quantities import NONE, duration, ratio


def accuracy(estimate: Estimate | None) -> str:
    """A share of right answers in percent, one decimal."""
    return NONE if estimate is None else f"{100 * estimate.value:.1f}%"


def accuracy_interval(estimate: Estimate | None) -> str:
    """Its bounds."""
    if estimate is None or estimate.ci_low is None or estimate.ci_high is None:
        return NONE
    return f"{100 * estimate.ci_low:.1f}% to {100 * estimate.ci_high:.1f}%"


def points(estimate: Estimate | None) -> str:
    """A difference of accuracies with its interval, in percentage points."""
    if estimate is None:
        return NONE
    bounds = "" if estimate.ci_low is None or estimate.ci_high is None else f", {points_interval(estimate)}"
    return f"{100 * estimate.value:+.2f} points{bounds}"


def points_interval(estimate: Estimate | None) -> str:
    """The bounds of a difference of accuracies, in percentage points."""
    if estimate is None or estimate.ci_low is None or estimate.ci_high is None:
        return NONE
    return f"{100 * estimate.ci_low:+.2f} to {100 * estimate.ci_high:+.2f}"


def time_ratio(estimate: Estimate | None) -> str:
    """A ratio of times with its interval."""
    if estimate is None:
        return NONE
    if estimate.ci_low is None or estimate.ci_high is None:
        return ratio(estimate.value)
    return f"{ratio(estimate.value)} ({estimate.ci_low:.3f} to {estimate.ci_high:.3f})"


def seconds(value: float | None) -> str:
    """A time in the unit that fits."""
    return NONE if value is None else duration(Estimate(value=value))
