"""What all charts share: layouts, and the colour of each arm.

Colours are names such as ``@arm-2``; the page replaces them by those of its light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from reports.schema import ArmSummary

Figure = dict[str, Any]

ROW_PX, HEAD_PX = 34, 64
WIDEST = 3.0
"""Error bars reach beyond the ratios that are drawn by this factor at most; the axis ends there."""
LOGARITHMIC = 10.0
"""An axis whose ends differ by a larger factor is logarithmic."""
COLOURS = 10
"""How many candidates have a colour of their own; beyond, they are used again."""


class HasArms(Protocol):
    """A comparison, or one point of a study."""

    arms: list[ArmSummary]

    def arm(self, name: str) -> ArmSummary:
        """The arm of this name."""


def arm_colour(comparison: HasArms, name: str) -> str:
    """The baseline and its control are grey, candidates have a colour each."""
    arm = comparison.arm(name)
    if arm.role != "candidate":
        return f"@{arm.role}"
    candidates = [other.name for other in comparison.arms if other.role == "candidate"]
    return f"@arm-{candidates.index(name) % COLOURS}"


def arm_dash(arm: ArmSummary) -> str:
    """A control's line is dotted."""
    return "dot" if arm.role == "control" else "solid"


def legend_above(layout: Figure) -> None:
    """A legend in one row over the chart."""
    layout["showlegend"] = True
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}


def arm_layout(arms: int, title: str) -> Figure:
    """Arms from top to bottom, in the plan's order."""
    layout = base_layout(HEAD_PX + ROW_PX * arms, title)
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False}
    return layout


def base_layout(height: int, title: str) -> Figure:
    """A quiet frame with a titled x axis."""
    axis = {"gridcolor": "@grid", "zerolinecolor": "@muted", "linecolor": "@grid", "zeroline": False}
    return {
        "height": height,
        "margin": {"l": 10, "r": 16, "t": 10, "b": 44},
        "paper_bgcolor": "@background",
        "plot_bgcolor": "@background",
        "font": {
            "color": "@text",
            "size": 13,
            "family": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif",
        },
        "xaxis": axis | {"title": {"text": title, "font": {"size": 12, "color": "@muted"}}},
        "yaxis": dict(axis),
        "showlegend": False,
        "hovermode": "closest",
    }


def padded(values: Sequence[float]) -> list[float]:
    """A range with a little room at either end."""
    low, high = min(values), max(values)
    room = 0.03 * (high - low) or 0.1 * abs(high) or 1.0
    return [low - room, high + room]


def ratio_axis(ratios: Sequence[float], bounds: Sequence[float]) -> Figure:
    """What an axis of ratios needs besides, so that huge intervals leave the ratios readable; nothing where all are moderate.

    Args:
        ratios: that are drawn, at least one; 1 is drawn besides.
        bounds: of their intervals.
    """
    low, high = min(*ratios, 1.0) / WIDEST, max(*ratios, 1.0) * WIDEST
    ends = [min(max(end, low), high) for end in (*ratios, *bounds, 1.0)]
    if max(ends) / min(ends) > LOGARITHMIC:
        return log_axis(min(ends), max(ends))
    return {"range": padded(ends)} if any(not low <= end <= high for end in bounds) else {}


def log_axis(low: float, high: float) -> Figure:
    """A logarithmic axis with a little room at either end."""
    return {"type": "log", "range": padded([math.log10(low), math.log10(high)])}
