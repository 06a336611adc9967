"""The charts of several points as plain Plotly figures.

Throughput, speed-up beside the ideal line and time to train against ranks; ratios by point.
"""

from __future__ import annotations

import html

from reports.charts.frame import Figure, arm_style, bounded_axis, curve_layout, error_bars, line, rule
from reports.conclusions.scaling import has_own_units, scaling_base
from reports.schema import Comparison, Estimate
from reports.tables.figures import arm_rows, figure_at
from reports.wording.points import trained_to

HEIGHT_PX = 360
FROM_ZERO = {"rangemode": "tozero"}


def point_charts(study: Comparison) -> dict[str, Figure]:
    """Every chart that has data, by name; none without points."""
    if not study.points:
        return {}
    made = {
        "throughput": _by_ranks(study, "arm.throughput_per_s", f"{html.escape(study.sample_unit)}/s"),
        "speed_up": _by_ranks(study, "arm.speed_up", "speed-up"),
        "time_to_train": _by_ranks(study, "training.time_to_train_s", f"seconds to {trained_to(study.target_accuracy)}"),
        "ratios": _ratios(study),
    }
    if (speed_up := made["speed_up"]) and has_own_units(study.points):
        bases = (scaling_base(study.points, name) for name in study.arm_names)
        at_one = next((base.point.world_size for base in bases if base), 1)
        sizes = speed_up["layout"]["xaxis"]["tickvals"]
        style = {"color": "@muted", "width": 1, "dash": "dash"}
        ideal = line(name="ideal", x=sizes, y=[size / at_one for size in sizes], style=style, hover="ideal: %{y:.2f}")
        speed_up["data"].insert(0, ideal)
    return {name: figure for name, figure in made.items() if figure}


def _by_ranks(study: Comparison, path: str, title: str) -> Figure | None:
    """A line for each arm against ranks, with hosts below where they are named; None if all points have as many ranks."""
    points = sorted(study.points, key=lambda point: point.world_size)
    ticks = {point.world_size: _ranks_and_hosts(point) for point in points}
    found = _found(study, path)
    if not found or len(ticks) < 2:
        return None
    x = {"title": "ranks", "tickvals": list(ticks), "ticktext": list(ticks.values())}
    ranks = {point.name: point.world_size for point in points}
    return _chart(study, path, ranks, x, {"title": title} | FROM_ZERO | bounded_axis(found))


def _ranks_and_hosts(point: Comparison) -> str:
    if point.asked_hosts is None:
        return str(point.world_size)
    number = point.asked_hosts.count(",") + 1
    return f"{point.world_size}<br>{number} host{'' if number == 1 else 's'}"


def _ratios(study: Comparison) -> Figure | None:
    """A line for each arm, point by point in the plan's order."""
    found = _found(study, "result.ratio")
    if not found:
        return None
    places = {point.name: point.name for point in study.points}
    x = {"title": "", "type": "category", "categoryorder": "array", "categoryarray": list(places)}
    y = {"title": f"throughput relative to {study.baseline}"} | bounded_axis(found, 1.0, may_be_log=True)
    chart = _chart(study, "result.ratio", places, x, y)
    rule(chart["layout"], y=1)
    return chart


def _found(study: Comparison, path: str) -> list[Estimate]:
    return [found for row in arm_rows(study) if (found := figure_at(row, path))]


def _chart(study: Comparison, path: str, places: Figure, x: Figure, y: Figure) -> Figure:
    """A line with intervals for each arm along the points at which it has a figure. ``places``: of the points, in their order."""
    by_arm: dict[str, dict[str, Estimate]] = {name: {} for name in study.arm_names}
    for row in arm_rows(study):
        if found := figure_at(row, path):
            by_arm[row.arm.name][row.place] = found
    traces = []
    for name, at in ((name, at) for name, at in by_arm.items() if at):
        known = [place for place in places if place in at]
        traces.append(
            line(
                name=name,
                x=[places[place] for place in known],
                y=[at[place].value for place in known],
                error_y=error_bars([at[place] for place in known], thickness=1.2, width=4),
                customdata=known,
                style=arm_style(study.points[0], name),
                marker={"size": 7},
                hover=f"{name} at %{{customdata}}: %{{y:.3~g}}",
            )
        )
    layout = curve_layout(HEIGHT_PX, x.pop("title"), y.pop("title"))
    layout["margin"]["t"] = 40
    layout["xaxis"] |= x
    layout["yaxis"] |= y
    return {"data": traces, "layout": layout}
