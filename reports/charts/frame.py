"""What all charts share: layouts, lines and notes, and the colour of each arm.

Colours are names such as ``@arm-2``; the page replaces them by those of its light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from reports.schema import Comparison, Estimate

Figure = dict[str, Any]

MAX_REACH = 3.0
"""Error bars reach beyond the ratios that are drawn by this factor at most; the axis ends there."""
LOGARITHMIC = 10.0
"""An axis whose ends differ by a larger factor is logarithmic."""
COLOURS = 10
"""How many candidates have a colour of their own; beyond, they are used again."""


def arm_colour(comparison: Comparison, name: str) -> str:
    """The baseline and its control are grey, candidates have a colour each."""
    arm = comparison.arm(name)
    if arm.role in ("baseline", "control"):
        return f"@{arm.role}"
    candidates = [
        other.name for other in comparison.arms if other.role not in ("baseline", "control")
    ]
    return f"@arm-{candidates.index(name) % COLOURS}"


def arm_style(comparison: Comparison, name: str) -> Figure:
    """How ``line`` draws an arm: in its colour, a control dotted."""
    return {
        "color": arm_colour(comparison, name),
        "dash": "dot" if comparison.arm(name).role == "control" else "solid",
    }


def base_layout(height: int, title: str) -> Figure:
    """A quiet frame with a titled x axis."""
    axis = {
        "gridcolor": "@grid",
        "zerolinecolor": "@muted",
        "linecolor": "@grid",
        "zeroline": False,
    }
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
        "shapes": [],
        "annotations": [],
    }


def curve_layout(height: int, x: str, y: str) -> Figure:
    """A frame with both axes titled and a legend in one row over it."""
    layout = base_layout(height, x)
    legend_above(layout)
    layout["yaxis"] |= {
        "title": {"text": y, "font": {"size": 12}, "standoff": 10},
        "automargin": True,
    }
    return layout


def legend_above(layout: Figure) -> None:
    """Put a legend in one row over the chart."""
    layout["showlegend"] = True
    layout["legend"] = {
        "orientation": "h",
        "x": 0,
        "y": 1.02,
        "yanchor": "bottom",
        "traceorder": "normal",
    }


def line(
    *, x: Iterable[object], y: Iterable[object], hover: str, style: Figure, **more: Any
) -> Figure:
    """A line through values.

    ``hover``: what Plotly shows of a value. ``more``: of the trace; with a ``marker`` each value
    has a mark.
    """
    mode = "lines+markers" if "marker" in more else "lines"
    trace = {
        "type": "scatter",
        "mode": mode,
        "x": list(x),
        "y": list(y),
        "line": {"width": 2} | style,
    }
    return trace | {"hovertemplate": f"{hover}<extra></extra>"} | more


def error_bars(estimates: Sequence[Estimate], **style: Any) -> Figure:
    """From each value to the bounds that it has."""
    above = [(estimate.ci_high or estimate.value) - estimate.value for estimate in estimates]
    below = [estimate.value - (estimate.ci_low or estimate.value) for estimate in estimates]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below} | style


def rule(layout: Figure, y: float, **style: Any) -> None:
    """Draw a level line across the chart, below its data."""
    ends = {"xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": y, "y1": y}
    layout["shapes"].append({"type": "line", "layer": "below", "line": style} | ends)


def bounded_axis(
    estimates: Sequence[Estimate], *besides: float, may_be_log: bool = False
) -> Figure:
    """Range and type of an axis, so that huge intervals leave the values readable.

    ``may_be_log``: it need not begin at 0.
    """
    values = [*(estimate.value for estimate in estimates), *besides]
    bounds = [bound for estimate in estimates for bound in estimate.bounds or ()]
    low = max(min(values) / MAX_REACH, min([*values, *bounds]))
    high = min(max(values) * MAX_REACH, max([*values, *bounds]))
    is_log = may_be_log and high / low > LOGARITHMIC
    ends = (math.log10(low), math.log10(high)) if is_log else (low * may_be_log, high)
    room = 0.03 * (ends[1] - ends[0]) or 0.1
    return {"type": "log" if is_log else "linear", "range": [ends[0] - room, ends[1] + room]}
