"""report.html: one file that opens offline, the answer first.

Plotly (``plotly/``: its basic bundle 4.1.1, MIT) is inlined once; the page asks the network for
nothing. Names, messages and logs are shown as text, whatever they hold.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from measurement.errors import in_report
from reports.base import Report
from reports.conclusions.scaling import has_own_units
from reports.formats.charts import charts
from reports.formats.curves import CURVE_TITLES, MAX_REACH, curve_name, point_charts
from reports.formats.texts import content, templates
from reports.schema import Comparison
from reports.wording import formatting
from reports.wording.first_screen import Candidate


class HtmlReport(Report):
    """A page for people, with charts; light and dark, fit for print."""

    file_name = "report.html"

    def render(self, summary: Comparison) -> bytes:
        """A page of about 0.6 MB, most of it Plotly (compressed), which draws the figures.

        Strict Jinja; everything is escaped.
        """
        figures = charts(summary) | point_charts(summary)
        drawn = {"figures": figures, "figures_json": script_json(figures), "plotly": _plotly()}
        return _pages().get_template("report.html.j2").render(**drawn, **content(summary)).encode()


@cache
def _pages() -> Environment:
    pages = templates(autoescape=True)
    pages.finalize = _as_text
    used = (curve_name, has_own_units, interval_axis, formatting.plain)
    pages.globals |= {function.__name__: function for function in used} | {
        "curve_titles": CURVE_TITLES
    }
    return pages


@cache
def _plotly() -> str:
    """Plotly, compressed, which takes a tenth of a second."""
    plotly = (Path(__file__).parent / "plotly" / "plotly-basic.min.js").read_bytes()
    return b64encode(gzip.compress(plotly, mtime=0)).decode()


def _as_text(value: Any) -> Any:
    """What a page shows of a value; markup of our own stays as it is."""
    return in_report(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def script_json(value: Any) -> str:
    """JSON for a script element; no text in it can end that element."""
    text = json.dumps(_in_figures(value), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _in_figures(value: Any) -> Any:
    if isinstance(value, str):
        return in_report(value)
    if isinstance(value, dict):
        return {key: _in_figures(part) for key, part in value.items()}
    return [_in_figures(part) for part in value] if isinstance(value, list | tuple) else value


TICKS = (
    0.001,
    0.01,
    0.1,
    0.2,
    0.5,
    0.75,
    0.9,
    0.95,
    0.98,
    0.99,
    1,
    1.01,
    1.02,
    1.05,
    1.1,
    1.25,
    1.5,
    2,
    5,
    10,
    100,
    1000,
)
MIN_TICK_DISTANCE = 14.0
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
    at_one: float
    band: tuple[float, float]
    """Left end and width of what is of no practical interest."""


def interval_axis(candidates: Sequence[Candidate], *, threshold: float) -> IntervalAxis:
    """The axis that holds all candidates; intervals that reach far beyond the ratios end at its
    ends. ``threshold``: differences by less are of no practical interest.
    """
    ratios = [candidate.ratio for candidate in candidates if candidate.ratio]
    low, high = min([*ratios, 1.0]), max([*ratios, 1.0])
    bounds = [
        bound for candidate in candidates for bound in (candidate.low, candidate.high) if bound
    ]
    ends = [
        math.log(min(max(end, low / MAX_REACH), high * MAX_REACH))
        for end in (*ratios, *bounds, 1 - threshold, 1.01)
    ]
    first, room = min(ends), 0.06 * (max(ends) - min(ends))
    length = max(ends) - first + 2 * room

    def place(value: float) -> float:
        return round(min(max(100 * (math.log(value) - first + room) / length, 0.0), 100.0), 2)

    def bar(candidate: Candidate, value: float) -> IntervalBar:
        interval = f"interval {candidate.interval}" if candidate.interval else "no interval"
        left, right = place(candidate.low or value), place(candidate.high or value)
        return IntervalBar(
            dot=place(value),
            left=left,
            width=round(max(right - left, 0.3), 2) if candidate.interval else None,
            text=f"ratio {formatting.ratio(value)}, {interval}",
        )

    ticks: dict[float, str] = {}
    for tick in sorted(TICKS, key=lambda tick: (tick != 1, tick > 1, abs(math.log(tick)))):
        at, difference = place(tick), formatting.signed_difference(tick)
        if 4 <= at <= 96 and all(abs(at - other) >= MIN_TICK_DISTANCE for other in ticks):
            ticks[at] = "same" if tick == 1 else re.sub(r"\.0+(?=%| )", "", difference)
    left, right = place(1 - threshold), place(1 + threshold)
    return IntervalAxis(
        bars=[
            bar(candidate, candidate.ratio) if candidate.ratio else None for candidate in candidates
        ],
        ticks=sorted(ticks.items()) if ratios else [],
        at_one=place(1.0),
        band=(left, round(right - left, 2)),
    )
