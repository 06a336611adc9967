"""The chart of all pairs of blocks in order of time: one panel per ratio, launches side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.charts.frame import HEAD_PX, LOGARITHMIC, Figure, arm_colour, base_layout, log_axis
from reports.schema import Comparison, RatioSummary
from reports.wording.formatting import ratio

MAX_POINTS = 5000
"""Beyond, every n-th pair is drawn."""
PANEL_PX = 130
Limits = tuple[float, float]
Offsets = dict[int, tuple[float, float]]
"""Per launch, where it begins on the common axis and how long it is, in turns."""


def pairs_chart(comparison: Comparison) -> Figure | None:
    """Every pair of blocks in order of its turn, one panel per candidate, launches side by side."""
    shown = [result for result in comparison.results if result.pairs]
    if not shown:
        return None
    every = pair_stride(comparison)
    low, high = _pair_range(shown)
    offsets = launch_offsets(shown)
    layout = base_layout(HEAD_PX + PANEL_PX * len(shown), "turn (launches side by side)")
    layout["margin"] |= {"t": 30}
    layout["xaxis"] |= {"showticklabels": False, "zeroline": False, "showgrid": False, "anchor": f"y{len(shown)}"}
    layout["shapes"], layout["annotations"] = [], []
    traces = []
    for number, result in enumerate(shown, start=1):
        traces.append(_pair_points(comparison, result, number, offsets, every, (low, high)))
        _add_panel(layout, result, number, len(shown), (low, high))
    mark_launches(layout, offsets)
    return {"data": traces, "layout": layout}


def pair_stride(comparison: Comparison) -> int:
    """Of how many pairs one is drawn."""
    return max(1, math.ceil(sum(result.pairs for result in comparison.results) / MAX_POINTS))


def _pair_range(results: Sequence[RatioSummary]) -> Limits:
    """All but the outermost hundredth of the pairs, and 1."""
    logs = sorted(value for result in results for value in result.pair_table["log_ratio"])
    edge = len(logs) // 100
    low, high = min(0.0, logs[edge]), max(0.0, logs[-1 - edge])
    room = 0.08 * (high - low) + 0.002
    return math.exp(low - room), math.exp(high + room)


def launch_offsets(results: Sequence[RatioSummary]) -> Offsets:
    """Where each launch begins on the common axis, and how long it is."""
    lengths: dict[int, int] = {}
    for result in results:
        for launch, turn in zip(result.pair_table["launch"], result.pair_table["turn"], strict=True):
            lengths[launch] = max(lengths.get(launch, 0), turn + 1)
    offsets, begin = {}, 0.0
    for launch, length in sorted(lengths.items()):
        offsets[launch] = (begin, float(length))
        begin += length
    return offsets


def _pair_points(
    comparison: Comparison,
    result: RatioSummary,
    number: int,
    offsets: Offsets,
    every: int,
    limits: Limits,
) -> Figure:
    table = result.pair_table
    ratios = [math.exp(value) for value in table["log_ratio"]][::every]
    places = list(zip(table["launch"], table["turn"], strict=True))[::every]
    shapes = ["triangle-up" if r > limits[1] else "triangle-down" if r < limits[0] else "circle" for r in ratios]
    sizes = [5 if shape == "circle" else 8 for shape in shapes]
    symbols = [f"{shape}-open" if hit else shape for shape, hit in zip(shapes, table["disturbed"][::every], strict=True)]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [offsets[launch][0] + turn for launch, turn in places],
        "y": [min(max(value, limits[0]), limits[1]) for value in ratios],
        "yaxis": f"y{number}" if number > 1 else "y",
        "marker": {"size": sizes, "color": arm_colour(comparison, result.candidate), "opacity": 0.75, "symbol": symbols},
        "customdata": [[launch, turn, value] for (launch, turn), value in zip(places, ratios, strict=True)],
        "hovertemplate": "launch %{customdata[0]}, turn %{customdata[1]}: %{customdata[2]:.3f}<extra></extra>",
        "cliponaxis": False,
    }


def _add_panel(layout: Figure, result: RatioSummary, number: int, panels: int, limits: Limits) -> None:
    """One candidate's axis with its name above, a line at 1 and one at its ratio."""
    suffix = str(number) if number > 1 else ""
    height, gap = 1 / panels, 26 / (PANEL_PX * panels)
    top = 1 - (number - 1) * height
    axis = {"domain": [top - height + gap / 2, top - gap], "range": list(limits), "nticks": 5, "tickformat": ".3~f"}
    axis |= log_axis(*limits) if limits[1] / limits[0] > LOGARITHMIC else {}
    layout[f"yaxis{suffix}"] = layout["yaxis"] | axis | {"automargin": True}
    span = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": f"y{suffix}", "layer": "below"}
    layout["shapes"].append(span | {"y0": 1, "y1": 1, "line": {"color": "@text", "width": 1}})
    estimate = result.throughput_ratio
    if estimate is not None:
        layout["shapes"].append(span | {"y0": estimate, "y1": estimate, "line": {"color": "@accent", "width": 1.5, "dash": "dash"}})
    label = {"xref": "paper", "yref": "paper", "x": 0, "y": top - gap, "xanchor": "left", "yanchor": "bottom"}
    text = f"<b>{result.candidate}</b>  {ratio(estimate)}"
    layout["annotations"].append(label | {"text": text, "showarrow": False, "font": {"size": 12}})


def mark_launches(layout: Figure, offsets: Offsets) -> None:
    """Draw an edge between launches, and write each one's number above."""
    for index, (launch, (begin, length)) in enumerate(offsets.items()):
        if index:
            edge = {"type": "line", "xref": "x", "yref": "paper", "x0": begin, "x1": begin, "y0": 0, "y1": 1}
            layout["shapes"].append(edge | {"line": {"color": "@grid", "width": 1}, "layer": "below"})
        place = {"xref": "x", "yref": "paper", "x": begin + length / 2, "y": 1, "yanchor": "bottom", "showarrow": False}
        layout["annotations"].append(place | {"text": f"launch {launch}", "font": {"size": 11, "color": "@muted"}, "yshift": 8})
    end = max(begin + length for begin, length in offsets.values())
    layout["xaxis"]["range"] = [-1, end]
