"""The charts of a study as plain Plotly figures.

Throughput, speed-up beside the ideal line and time to train against ranks; ratios and exposed exchange by point.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from reports.charts.frame import Figure, arm_style, bounded_axis, curve_layout, error_bars, line, rule
from reports.conclusions.study_conclusions import has_own_units, scaling_base
from reports.schema import ArmSummary, Estimate, Study, StudyPoint
from reports.wording.study_sentences import trained_to

Read = Callable[[StudyPoint, ArmSummary], Estimate | None]
HEIGHT_PX = 360


def study_charts(study: Study) -> dict[str, Figure]:
    """Every chart that has data, by name."""
    made = {
        "throughput": _by_ranks(study, lambda _, arm: arm.throughput_per_s, f"{html.escape(study.sample_unit)}/s"),
        "speed_up": speed_up_chart(study),
        "time_to_train": _by_ranks(study, lambda _, arm: arm.time_to_train_s, f"seconds to {trained_to(study.target_accuracy)}"),
        "ratios": ratios_chart(study),
        "exposed": exposed_chart(study),
    }
    return {name: figure for name, figure in made.items() if figure is not None}


def speed_up_chart(study: Study) -> Figure | None:
    """Speed-up by ranks for each arm, and the ideal one where ranks have their own cores; None if all points have as many ranks."""
    figure = _by_ranks(study, lambda _, arm: arm.speed_up, "speed-up")
    if figure and has_own_units(study.points):
        bases = (scaling_base(study.points, name) for name in study.arm_names)
        at_one = next((base.point.world_size for base in bases if base), 1)
        sizes = figure["layout"]["xaxis"]["tickvals"]
        style = {"color": "@muted", "width": 1, "dash": "dash"}
        ideal = line(name="ideal", x=sizes, y=[size / at_one for size in sizes], style=style, hover="ideal: %{y:.2f}")
        figure["data"].insert(0, ideal)
    return figure


def _by_ranks(study: Study, read: Read, title: str) -> Figure | None:
    """A line for each arm against ranks, with hosts below where they are named; None if all points have as many ranks."""
    points = sorted(study.points, key=lambda point: point.world_size)
    figure = _chart(study, points, read, lambda point: point.world_size, "ranks", title)
    ticks = {point.world_size: _ranks_and_hosts(point) for point in points}
    if figure is None or len(ticks) < 2:
        return None
    figure["layout"]["xaxis"] |= {"tickvals": list(ticks), "ticktext": list(ticks.values())}
    found = [one for point in points for arm in point.arms if (one := read(point, arm))]
    figure["layout"]["yaxis"] |= {"rangemode": "tozero"} | bounded_axis(found)
    return figure


def _ranks_and_hosts(point: StudyPoint) -> str:
    if point.hosts is None:
        return str(point.world_size)
    number = point.hosts.count(",") + 1
    return f"{point.world_size}<br>{number} host{'' if number == 1 else 's'}"


def ratios_chart(study: Study) -> Figure | None:
    """Each candidate's ratio to the baseline, point by point."""

    def read(point: StudyPoint, arm: ArmSummary) -> Estimate | None:
        result = point.result(arm.name)
        return result.ratio if result else None

    figure = _by_point(study, read, "throughput relative to " + study.baseline)
    if figure:
        rule(figure["layout"], y=1)
        found = [one for point in study.points for arm in point.arms if (one := read(point, arm))]
        figure["layout"]["yaxis"] |= bounded_axis(found, 1.0, may_be_log=True)
    return figure


def exposed_chart(study: Study) -> Figure | None:
    """Exposed exchange, point by point; from the fastest link to the slowest where only their rate differs."""
    figure = _by_point(
        study, lambda _, arm: arm.exposed_exchange_s.times(1e3) if arm.exposed_exchange_s else None, "exposed ms per step"
    )
    if figure:
        figure["layout"]["yaxis"] |= {"rangemode": "tozero"}
    return figure


def _by_point(study: Study, read: Read, title: str) -> Figure | None:
    points = study.points
    figure = _chart(study, points, read, lambda point: point.name, "", title)
    if figure:
        order = [point.name for point in points]
        figure["layout"]["xaxis"] |= {"type": "category", "categoryorder": "array", "categoryarray": order}
    return figure


def _chart(
    study: Study, points: Sequence[StudyPoint], read: Read, place: Callable[[StudyPoint], object], x: str, y: str
) -> Figure | None:
    """A line with intervals for each arm along the points at which it has a figure; None where no arm has any."""
    first, traces = study.points[0], []
    for name in study.arm_names:
        found = [(point, estimate) for point in points if (estimate := read(point, point.arm(name))) is not None]
        if found:
            traces.append(
                line(
                    name=name,
                    x=[place(point) for point, _ in found],
                    y=[estimate.value for _, estimate in found],
                    error_y=error_bars([estimate for _, estimate in found], thickness=1.2, width=4),
                    customdata=[point.name for point, _ in found],
                    style=arm_style(first, name),
                    marker={"size": 7},
                    hover=f"{name} at %{{customdata}}: %{{y:.3~g}}",
                )
            )
    layout = curve_layout(HEIGHT_PX, x, y)
    layout["margin"]["t"] = 40
    return {"data": traces, "layout": layout} if traces else None
