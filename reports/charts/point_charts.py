"""The charts of several points as plain Plotly figures.

Throughput, speed-up beside the ideal line and time to train against ranks; ratios by point.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from reports.charts.frame import (
    Figure,
    arm_style,
    bounded_axis,
    curve_layout,
    error_bars,
    line,
    rule,
)
from reports.conclusions.scaling import has_own_units, scaling_base
from reports.schema import Comparison
from reports.tables.figures import arm_rows
from reports.wording.points import trained_to

HEIGHT_PX = 360


def point_charts(comparison: Comparison) -> dict[str, Figure]:
    """Every chart that has data, by name; none without points, and none against ranks where all
    points have as many.
    """
    points = sorted(comparison.points, key=lambda point: point.world_size)
    ticks = list(dict.fromkeys(point.world_size for point in points))
    x = {"title": "ranks", "tickvals": ticks}
    shown = {
        "throughput": ("arm.throughput_per_s", f"{html.escape(comparison.sample_unit)}/s"),
        "speed_up": ("arm.speed_up", "speed-up"),
        "time_to_train": (
            "training.time_to_train_s",
            f"seconds to {trained_to(comparison.target_accuracy)}",
        ),
    }
    ranks = {point.name: point.world_size for point in points}
    made = {
        name: _chart(comparison, *source, places=ranks, x=x)
        for name, source in shown.items()
        if len(ticks) > 1
    }
    if points:
        places = {point.name: point.name for point in comparison.points}
        x = {
            "title": "",
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(places),
        }
        title = f"throughput relative to {comparison.baseline}"
        made["ratios"] = _chart(
            comparison, "result.ratio", title, places=places, x=x, is_ratio=True
        )
    if (speed_up := made.get("speed_up")) and has_own_units(points):
        bases = (scaling_base(comparison.points, name) for name in comparison.arm_names)
        at_one = next((base.point.world_size for base in bases if base), 1)
        style, ideal = (
            {"color": "@muted", "width": 1, "dash": "dash"},
            [size / at_one for size in ticks],
        )
        speed_up["data"].insert(
            0, line(name="ideal", x=ticks, y=ideal, style=style, hover="ideal: %{y:.2f}")
        )
    return {name: figure for name, figure in made.items() if figure}


def _chart(
    comparison: Comparison,
    path: str,
    title: str,
    *,
    places: Mapping[str, Any],
    x: Figure,
    is_ratio: bool = False,
) -> Figure | None:
    """A line with intervals for each arm along the points at which it has a figure; None without
    any. ``places``: of the points.
    """
    rows = arm_rows(comparison, path)
    if not rows:
        return None
    traces = []
    for name in dict.fromkeys(row.arm.name for row in rows):
        at = {row.place: row.part for row in rows if row.arm.name == name}
        places_drawn = [place for place in places if place in at]
        traces.append(
            line(
                name=name,
                x=[places[place] for place in places_drawn],
                y=[at[place].value for place in places_drawn],
                error_y=error_bars([at[place] for place in places_drawn], thickness=1.2, width=4),
                customdata=places_drawn,
                style=arm_style(comparison.points[0], name),
                marker={"size": 7},
                hover=f"{name} at %{{customdata}}: %{{y:.3~g}}",
            )
        )
    layout, estimates = curve_layout(HEIGHT_PX, x["title"], title), [row.part for row in rows]
    layout["margin"]["t"] = 40
    layout["xaxis"] |= {key: value for key, value in x.items() if key != "title"}
    if is_ratio:
        layout["yaxis"] |= bounded_axis(estimates, 1.0, may_be_log=True)
        rule(layout, 1.0, color="@text", width=1)
    else:
        layout["yaxis"] |= bounded_axis(estimates)
    return {"data": traces, "layout": layout}
