"""Where the intervals of the first screen lie on their common axis, as shares of its width in percent: drawn without a library."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from reports.charts.frame import WIDEST
from reports.wording.first_screen import Candidate
from reports.wording.formatting import percent, percent_apart, ratio

TICKS = (0.001, 0.01, 0.1, 0.2, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1, 1.01, 1.02, 1.05, 1.1, 1.25, 1.5, 2, 5, 10, 100, 1000)
APART = 14.0
"""Ticks are at least so far from each other."""


@dataclass(frozen=True, kw_only=True)
class IntervalBar:
    """One candidate's interval."""

    dot: float
    left: float
    width: float | None
    """None: the data cannot carry an interval."""
    text: str


@dataclass(frozen=True, kw_only=True)
class IntervalAxis:
    """The axis: logarithmic, with 1 on it."""

    bars: Sequence[IntervalBar | None]
    """By candidate; None: it has no ratio."""
    ticks: Sequence[tuple[float, str]]
    one: float
    band: tuple[float, float] | None
    """Left end and width of what is of no practical interest."""
    baseline: str
    confidence: str


def interval_axis(
    candidates: Sequence[Candidate], *, baseline: str, confidence: float, threshold: float | None = None
) -> IntervalAxis:
    """The axis that holds all candidates; intervals that reach far beyond the ratios end at its ends."""
    ratios = [one.ratio for one in candidates if one.ratio]
    low, high = min([*ratios, 1.0]), max([*ratios, 1.0])
    bounds = [bound for one in candidates for bound in (one.low, one.high) if bound]
    ends = [math.log(min(max(end, low / WIDEST), high * WIDEST)) for end in (*ratios, *bounds, 1 - (threshold or 0.01), 1.01)]
    first, room = min(ends), 0.06 * (max(ends) - min(ends))
    length = max(ends) - first + 2 * room

    def place(value: float) -> float:
        return round(min(max(100 * (math.log(value) - first + room) / length, 0.0), 100.0), 2)

    def bar(one: Candidate, value: float) -> IntervalBar:
        text = f"ratio {ratio(value)}, {'interval ' + one.interval if one.interval else 'no interval'}"
        left, right = place(one.low or value), place(one.high or value)
        return IntervalBar(dot=place(value), left=left, width=round(max(right - left, 0.3), 2) if one.interval else None, text=text)

    ticks: list[tuple[float, str]] = []
    for tick in sorted(TICKS, key=lambda tick: (tick != 1, tick > 1, abs(math.log(tick)))):
        if abs(math.log(tick)) <= 9 and 4 <= place(tick) <= 96 and all(abs(place(tick) - other) >= APART for other, _ in ticks):
            ticks.append((place(tick), "same" if tick == 1 else re.sub(r"\.0+(?=%| )", "", percent_apart(tick))))
    band = None if threshold is None else (place(1 - threshold), round(place(1 + threshold) - place(1 - threshold), 2))
    return IntervalAxis(
        bars=[bar(one, one.ratio) if one.ratio else None for one in candidates],
        ticks=sorted(ticks) if ratios else [],
        one=place(1.0),
        band=band,
        baseline=baseline,
        confidence=percent(confidence),
    )
