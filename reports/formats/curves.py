"""Charts of lines along samples, epochs, seconds or ranks; and the frame that all charts share:
layouts, lines and notes, and the colour of each arm.

Colours are names such as ``@arm-2``; the page replaces them by those of its light or dark theme.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from measurement.plans.settings import Quantity
from reports.conclusions.scaling import has_own_units, scaling_base
from reports.parts_schema import Band
from reports.schema import Comparison, Estimate
from reports.tables.figures import arm_rows
from reports.wording.comparison_sentences import trained_to

Figure = dict[str, Any]

CURVE_PX, POINTS_PX = 320, 360
CURVE_TITLES: dict[Quantity, str] = {
    "held_out_top1": "held-out accuracy (top-1)",
    "held_out_top5": "held-out top-5 accuracy",
    "held_out_loss": "held-out loss",
    "train_top1": "training accuracy (top-1)",
    "train_top5": "training top-5 accuracy",
    "train_loss": "training loss",
}
SHARES: set[Quantity] = {"held_out_top1", "held_out_top5", "train_top1", "train_top5"}
"""Drawn in percent."""
AXES = {"epochs": "epochs", "time": "seconds of training"}
BAND_OPACITY = 0.16
MAX_REACH = 3.0
"""Error bars reach beyond the ratios that are drawn by this factor at most; the axis ends there."""
LOGARITHMIC = 10.0
"""An axis whose ends differ by a larger factor is logarithmic."""
COLOURS = 10
"""How many candidates have a colour of their own; beyond, they are used again."""


def losses_chart(comparison: Comparison) -> Figure | None:
    """The losses of scripts against samples: one curve for each arm, the mean over ranks and
    launches; None without any.
    """
    if comparison.equality is None or not comparison.equality.loss:
        return None
    traces = [
        line(
            name=arm,
            x=loss.samples,
            y=loss.curve,
            style=arm_style(comparison, arm),
            hover=f"{arm}: %{{y:.4~g}} at %{{x:,.0f}}",
            connectgaps=True,  # arms need not log the loss of the same steps
        )
        for arm, loss in comparison.equality.loss.items()
    ]
    layout = curve_layout(
        CURVE_PX, f"{comparison.equality.loss_unit} since the start, all ranks", "loss"
    )
    layout["xaxis"] |= {"rangemode": "tozero"}
    return {"data": traces, "layout": layout}


def curve_name(quantity: Quantity, axis: str) -> str:
    """A chart's name on the page, such as ``curve_held_out_top1_epochs``."""
    return f"curve_{quantity}_{axis}"


def training_curve(comparison: Comparison, quantity: Quantity, axis: str) -> Figure | None:
    """Means over seeds with their bands, of one quantity; None where no arm has it."""
    assert comparison.training is not None
    curves = {
        arm.name: arm.curve
        for arm in comparison.training.arms
        if arm.curve and quantity in arm.curve.bands
    }
    if not curves:
        return None
    traces: list[Figure] = []
    for name, curve in curves.items():
        ends = curve.train_s
        x = ends if axis == "time" else [float(epoch) for epoch in range(1, len(ends) + 1)]
        band, colour = curve.bands[quantity], arm_colour(comparison, name)
        traces.append(_band(x, band) | {"fillcolor": colour, "legendgroup": name})
        hover = f"{name}: %{{y:.4~g}} at %{{x:.3~g}}"
        traces.append(
            line(
                name=name, legendgroup=name, x=x, y=band.mean, style={"color": colour}, hover=hover
            )
        )
    layout = curve_layout(CURVE_PX, AXES[axis], CURVE_TITLES[quantity])
    layout["yaxis"]["title"] |= {"standoff": 8}
    layout["xaxis"] |= {"rangemode": "tozero"}
    if quantity in SHARES:
        layout["yaxis"] |= {"tickformat": ".1~%"}
    if quantity == "held_out_top1" and comparison.training.settings.target_accuracy is not None:
        rule(layout, comparison.training.settings.target_accuracy, color="@muted", dash="dot")
    return {"data": traces, "layout": layout}


def _band(x: Sequence[float], band: Band) -> Figure:
    """A closed line: along the least of the seeds, back along the most; without epochs at which a
    seed has no value.
    """
    places = [
        (place, low, high)
        for place, low, high in zip(x, band.low, band.high, strict=True)
        if low is not None
    ]
    return {
        "type": "scatter",
        "mode": "none",
        "fill": "toself",
        "opacity": BAND_OPACITY,
        "hoverinfo": "skip",
        "showlegend": False,
        "x": [place for place, _, _ in places] + [place for place, _, _ in reversed(places)],
        "y": [low for _, low, _ in places] + [high for _, _, high in reversed(places)],
    }


def point_charts(comparison: Comparison) -> dict[str, Figure]:
    """Every chart of points that has data, by name; none without points, and none against ranks
    where all points have as many.
    """
    made, sizes = (
        dict[str, Figure | None](),
        sorted({point.world_size for point in comparison.points}),
    )
    if len(sizes) > 1:
        unit, end = html.escape(comparison.sample_unit), trained_to(comparison.target_accuracy)
        made = {
            "throughput": _point_chart(comparison, "arm.throughput_per_s", f"{unit}/s"),
            "speed_up": _point_chart(comparison, "arm.speed_up", "speed-up"),
            "time_to_train": _point_chart(
                comparison, "training.time_to_train_s", f"seconds to {end}"
            ),
        }
    if (speed_up := made.get("speed_up")) and has_own_units(comparison.points):
        bases = (scaling_base(comparison.points, name) for name in comparison.arm_names)
        at_one = next((base.point.world_size for base in bases if base), 1)
        ideal, style = (
            [size / at_one for size in sizes],
            {"color": "@muted", "width": 1, "dash": "dash"},
        )
        speed_up["data"].insert(
            0, line(name="ideal", x=sizes, y=ideal, style=style, hover="ideal: %{y:.2f}")
        )
    if sizes:
        title = f"throughput relative to {comparison.baseline}"
        made["ratios"] = _point_chart(comparison, "result.ratio", title, is_ratio=True)
    return {name: figure for name, figure in made.items() if figure}


def _point_chart(
    comparison: Comparison, path: str, title: str, *, is_ratio: bool = False
) -> Figure | None:
    """A line with intervals for each arm along the points at which it has a figure; None without
    any. A ratio stands point by point, all else against ranks.
    """
    rows = arm_rows(comparison, path)
    if not rows:
        return None
    layout = curve_layout(POINTS_PX, "" if is_ratio else "ranks", title)
    layout["margin"]["t"] = 40
    estimates = [row.part for row in rows]
    places: dict[str, int | str]
    if is_ratio:
        places = {point.name: point.name for point in comparison.points}
        layout["xaxis"] |= {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [*places],
        }
        layout["yaxis"] |= bounded_axis(estimates, 1.0, may_be_log=True)
        rule(layout, 1.0, color="@text", width=1)
    else:
        points = sorted(comparison.points, key=lambda point: point.world_size)
        places = {point.name: point.world_size for point in points}
        layout["xaxis"] |= {"tickvals": list(dict.fromkeys(places.values()))}
        layout["yaxis"] |= bounded_axis(estimates)
    traces = []
    for name in dict.fromkeys(row.arm.name for row in rows):
        at = {row.place: row.part for row in rows if row.arm.name == name}
        drawn = [place for place in places if place in at]
        traces.append(
            line(
                name=name,
                x=[places[place] for place in drawn],
                y=[at[place].value for place in drawn],
                error_y=error_bars([at[place] for place in drawn], thickness=1.2, width=4),
                customdata=drawn,
                style=arm_style(comparison.points[0], name),
                marker={"size": 7},
                hover=f"{name} at %{{customdata}}: %{{y:.3~g}}",
            )
        )
    return {"data": traces, "layout": layout}


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
