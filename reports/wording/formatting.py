"""How quantities are written for people: enough digits to act on, the unit always there, a dash
where there is none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from measurement.records.record import Case
from reports.schema import ArmSummary, Estimate, RatioSummary

NONE = "–"
SMALLEST, LARGEST = 0.001, 9999
"""Ratios beyond are written as bounds."""


def ratio(value: float | None) -> str:
    """A ratio with three decimals, above 100 with none; out of range it is a bound, ``< 0.001`` or
    ``> 9999``.
    """
    if value is None or math.isnan(value):
        return NONE
    if value >= LARGEST + 1:
        return f"> {LARGEST}"
    if value < SMALLEST:
        return f"< {SMALLEST}"
    return f"{value:.3f}" if value < 100 else f"{value:.0f}"


def _is_percent(value: float) -> bool:
    """Whether a ratio is written as a percentage, not as a factor."""
    return 0.1 < value < 2


def difference_text(value: float) -> str:
    """How far a ratio is from 1, before 'faster' or 'slower': ``5.2%``, ``12%``, from 2 on ``4.20
    times``, below a tenth ``18.0 times``.
    """
    if _is_percent(value):
        size = abs(value - 1)
        return f"{size:.0%}" if size >= 0.0995 else f"{size:.1%}"
    factor = max(value, 1 / value) if value > 0 else math.inf
    return f"{significant(factor)} times" if factor <= LARGEST else f"more than {LARGEST} times"


def faster_or_slower(value: float) -> str:
    """A ratio other than 1 as a difference, such as ``5.2% slower``."""
    return f"{difference_text(value)} {'slower' if value < 1 else 'faster'}"


def signed_difference(value: float) -> str:
    """``difference_text`` with the sign of a percentage: ``-5.2%``; ``4.20 times``, ``18.0 times
    slower``.
    """
    size = difference_text(value)
    if _is_percent(value):
        return f"{'-' if value < 1 else '+'}{size}"
    return f"{size} slower" if value < 1 else size


def plain(value: Any) -> str:
    """A stored value as a plan has it."""
    if value is None:
        return NONE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def percent(share: float) -> str:
    """A share, such as a confidence or a threshold, with no more digits than it has."""
    return f"{share * 100:g}%"


def one_sided_percent(confidence: float) -> str:
    """The confidence of the interval whose bounds each hold with this one by themselves: ``90%``
    for 0.95.
    """
    return percent(round(2 * confidence - 1, 6))


def bounds_text(
    low: float | None,
    high: float | None,
    words: Callable[[float], str] = ratio,
    *,
    none: str = NONE,
) -> str:
    """Such as ``0.921 to 0.937``; ``words`` formats a number; ``none`` is the text without
    bounds.
    """
    return none if low is None or high is None else f"{words(low)} to {words(high)}"


def interval(result: RatioSummary) -> str:
    """The bounds of a ratio's interval."""
    return bounds_text(result.ci_low, result.ci_high)


def interval_words(result: RatioSummary) -> str:
    """Ratio, interval and launches of a result."""
    if result.throughput_ratio is None:
        return "no timing"
    parts = [f"ratio {ratio(result.throughput_ratio)}"]
    if bounds := bounds_text(result.ci_low, result.ci_high, none=""):
        parts.append(f"{percent(result.confidence)} interval {bounds}")
    if result.verdict == "equivalent" and (
        sides := bounds_text(result.equivalence_low, result.equivalence_high, none="")
    ):
        parts.append(f"{one_sided_percent(result.confidence)} interval {sides}")
    launches = (
        count(result.launches, "launch", "launches")
        if result.run_order is None
        else count(result.launches, "run of each", "runs of each")
    )
    return ", ".join([*parts, launches])


def rate(value: Estimate | float) -> str:
    """Samples per second with at least four significant digits."""
    number = value.value if isinstance(value, Estimate) else value
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def rate_interval(estimate: Estimate) -> str:
    """The bounds of a throughput."""
    return bounds_text(estimate.ci_low, estimate.ci_high, rate)


def count(number: int, singular: str, plural: str | None = None) -> str:
    """Such as ``1 launch``, ``3 launches``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def minutes_words(minutes: float) -> str:
    """A duration, rounded up to whole minutes or hours."""
    if minutes >= 90:
        return f"{math.ceil(minutes / 60)} hours"
    return count(max(1, math.ceil(minutes)), "minute")


def listed(words: Sequence[str], last: str = " and ") -> str:
    """Such as ``a, b and c``; empty without any."""
    return ", ".join(words[:-1]) + last + words[-1] if len(words) > 1 else "".join(words)


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds with three significant digits, never in powers of ten."""
    if seconds is None:
        return NONE
    value = seconds * 1e3 if abs(seconds) >= 5e-6 else 0.0  # no negative zero
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def bandwidth(estimate: Estimate | None) -> str:
    """Bytes per second in the unit that fits, such as GB/s (10⁹); three significant digits."""
    if estimate is None:
        return NONE
    return _in_unit(estimate.value, {1e9: "GB/s", 1e6: "MB/s", 1e3: "kB/s"})


def significant(value: float) -> str:
    """Three significant digits, never in powers of ten; of what is not known, ``NONE``."""
    if not math.isfinite(value):
        return NONE
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{max(digits, 0)}f}"


def with_interval(estimate: Estimate | None, words: Callable[[float], str]) -> str:
    """A value and, in brackets, its bounds where it has them; ``words`` writes a number."""
    if estimate is None:
        return NONE
    bounds = bounds_text(estimate.ci_low, estimate.ci_high, words, none="")
    return f"{words(estimate.value)} ({bounds})" if bounds else words(estimate.value)


def share(part: float) -> str:
    """A share in whole percents."""
    return f"{round(100 * part)}%"


def gibibytes(number: int) -> str:
    """Bytes as GiB."""
    return f"{number / 2**30:.2f}"


def size_text(case: Case) -> str:
    """A case's size, such as ``64KiB``: its name without the operation."""
    return case.name.removeprefix(f"{case.operation}/")


def arm_kind(arm: ArmSummary) -> str:
    """Backend, transport and launcher."""
    parts = (arm.backend, arm.transport, arm.launcher)
    return " / ".join(part for part in parts if part not in (None, "", "none"))


def accuracy(estimate: Estimate | None) -> str:
    """A share of right answers in percent."""
    return NONE if estimate is None else f"{100 * estimate.value:.1f}%"


def accuracy_interval(estimate: Estimate) -> str:
    """``accuracy`` with the half width of its interval, which is symmetric."""
    half = estimate.half_width
    return accuracy(estimate) + ("" if half is None else f" ± {100 * half:.1f}")


def points(estimate: Estimate) -> str:
    """A difference of accuracies in percentage points, with the half width of its interval."""
    half = estimate.half_width
    return f"{100 * estimate.value:+.2f}" + ("" if half is None else f" ± {100 * half:.2f}")


def seconds(value: Estimate | float | None) -> str:
    """A time in the unit that fits, three significant digits."""
    if value is None:
        return NONE
    number = value.value if isinstance(value, Estimate) else value
    return _in_unit(number, {1.0: "s", 1e-3: "ms", 1e-6: "µs"})


def _in_unit(value: float, units: Mapping[float, str]) -> str:
    """A value in the largest of these units that it reaches, else in the smallest."""
    size = next((size for size in units if value >= size), min(units))
    return f"{significant(value / size)} {units[size]}"
