"""The charts in order of time, launches side by side: every pair of blocks, and strips of what the machine did meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from reports.charts.frame import LOGARITHMIC, WIDEST, Figure, arm_colour, base_layout, line, log_axis, note, rule
from reports.schema import Comparison, RatioSummary
from reports.wording.formatting import ratio

MAX_POINTS = 5000
"""Beyond, every n-th pair is drawn."""
PAIRS_PX, STRIP_PX = 130, 66
"""Height of a panel."""
FRAME_PX = {PAIRS_PX: 64, STRIP_PX: 74}
"""What is above and below all panels of that height."""
GAP_PX = 32
"""Between panels, for a title."""
Limits = tuple[float, float]
Offsets = dict[int, tuple[float, float]]
"""Per launch, where it begins on the common axis and how long it is, in turns."""


class Strip(NamedTuple):
    """A figure of every block, in a column of ``Comparison.machine_table``."""

    column: str
    title: str
    scale: float
    colour: str


STRIPS = (
    Strip("others", "% of the ranks' cores taken by others", 100, "@slower"),
    Strip("memory_share", "% of the fullest host's memory used", 100, "@arm-0"),
    Strip("sent_bytes_per_s", "MB/s sent over all interfaces", 1e-6, "@arm-1"),
)


def pairs_chart(comparison: Comparison) -> Figure | None:
    """Every pair of blocks in order of its turn, one panel per ratio, launches side by side."""
    shown = [result for result in comparison.results if result.pairs]
    if not shown:
        return None
    limits, offsets = _pair_range(shown), _launch_offsets(comparison)
    layout = _layout(PAIRS_PX, len(shown), offsets)
    axis = {"range": list(limits), "nticks": 5, "tickformat": ".3~f"}
    if (reach := limits[1] / limits[0]) > LOGARITHMIC:
        axis |= log_axis(*limits) | {"dtick": "D2" if reach < 100 else 1}  # by themselves ticks are at every digit
    traces = []
    for number, result in enumerate(shown, start=1):
        points = _pair_points(result, offsets, pair_stride(comparison), limits)
        points["marker"] |= {"color": arm_colour(comparison, result.candidate), "opacity": 0.75}
        traces.append(points | {"yaxis": _axis(number)})
        title = f"<b>{result.candidate}</b>  {ratio(result.throughput_ratio)}"
        _add_panel(layout, number, title=title, **axis)
        rule(layout, y=1, yref=_axis(number))
        if result.throughput_ratio is not None:
            rule(layout, y=result.throughput_ratio, yref=_axis(number), colour="@accent", width=1.5, dash="dash")
    return {"data": traces, "layout": layout}


def machine_chart(comparison: Comparison) -> Figure | None:
    """Strips under the pairs: what the machine did block by block, so that one sees where a disturbance struck."""
    table = comparison.machine_table
    shown = [strip for strip in STRIPS if any(value is not None for value in table.get(strip.column, []))]
    offsets = _launch_offsets(comparison)
    if not shown or not offsets:
        return None
    layout = _layout(STRIP_PX, len(shown), offsets)
    every = max(1, len(table["launch"]) * len(shown) // MAX_POINTS)
    turns = zip(table["launch"], table["turn"], strict=True)
    places = [offsets[launch][0] + turn if launch in offsets else None for launch, turn in turns][::every]
    traces = []
    for number, strip in enumerate(shown, start=1):
        values = [None if value is None else strip.scale * value for value in table[strip.column][::every]]
        style = {"color": strip.colour, "width": 1.5, "shape": "hv"}
        traces.append(line(x=places, y=values, style=style, hover=f"%{{y:.3~g}} {strip.title}", yaxis=_axis(number)))
        _add_panel(layout, number, title=strip.title, rangemode="tozero", nticks=3)
    return {"data": traces, "layout": layout}


def pair_stride(comparison: Comparison) -> int:
    """One of so many pairs is drawn."""
    return max(1, math.ceil(sum(result.pairs for result in comparison.results) / MAX_POINTS))


def _pair_range(results: Sequence[RatioSummary]) -> Limits:
    """All but the outermost hundredth of the pairs, and 1; not far beyond the ratios that they have together."""
    logs = sorted(value for result in results for value in result.pair_table["log_ratio"])
    edge, found = len(logs) // 100, [math.log(result.throughput_ratio) for result in results if result.throughput_ratio]
    low = max(min(0.0, logs[edge]), min([0.0, *found]) - math.log(WIDEST))
    high = min(max(0.0, logs[-1 - edge]), max([0.0, *found]) + math.log(WIDEST))
    room = 0.08 * (high - low) + 0.002
    return math.exp(low - room), math.exp(high + room)


def _launch_offsets(comparison: Comparison) -> Offsets:
    """Where each launch that has pairs begins on the common axis, and how long it is, blocks without a pair included."""
    lengths: dict[int, int] = {}
    tables = [result.pair_table for result in comparison.results if result.pairs]
    for table in (*tables, comparison.machine_table):
        for launch, turn in zip(table.get("launch", []), table.get("turn", []), strict=True):
            if table is not comparison.machine_table or launch in lengths:
                lengths[launch] = max(lengths.get(launch, 0), turn + 1)
    offsets, begin = {}, 0.0
    for launch, length in sorted(lengths.items()):
        offsets[launch] = (begin, float(length))
        begin += length
    return offsets


def _pair_points(result: RatioSummary, offsets: Offsets, every: int, limits: Limits) -> Figure:
    """A mark for each pair: triangles at the edge where it lies beyond the limits, open where others disturbed it."""
    table = result.pair_table
    ratios = [math.exp(value) for value in table["log_ratio"]][::every]
    places = list(zip(table["launch"], table["turn"], strict=True))[::every]
    shapes = ["triangle-up" if r > limits[1] else "triangle-down" if r < limits[0] else "circle" for r in ratios]
    symbols = [f"{shape}-open" if hit else shape for shape, hit in zip(shapes, table["disturbed"][::every], strict=True)]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [offsets[launch][0] + turn for launch, turn in places],
        "y": [min(max(value, limits[0]), limits[1]) for value in ratios],
        "marker": {"size": [5 if shape == "circle" else 8 for shape in shapes], "symbol": symbols},
        "customdata": [[launch, turn, value] for (launch, turn), value in zip(places, ratios, strict=True)],
        "hovertemplate": "launch %{customdata[0]}, turn %{customdata[1]}: %{customdata[2]:.3f}<extra></extra>",
        "cliponaxis": False,
    }


def _axis(number: int) -> str:
    """What Plotly calls a panel's vertical axis."""
    return f"y{number}" if number > 1 else "y"


def _layout(panel_px: int, panels: int, offsets: Offsets) -> Figure:
    """A frame for panels of this height one below the other; launches have an edge between them and their numbers above."""
    layout = base_layout(FRAME_PX[panel_px] + panel_px * panels, "turn (launches side by side)")
    layout["margin"] |= {"t": 30}
    gap = GAP_PX / panel_px
    subplots = [[f"x{_axis(number)}"] for number in range(1, panels + 1)]
    layout["grid"] = {"subplots": subplots, "ygap": gap, "domain": {"y": [0, 1 - 0.7 * gap / panels]}}
    end = max(begin + length for begin, length in offsets.values())
    layout["xaxis"] |= {"showticklabels": False, "showgrid": False, "anchor": _axis(panels), "range": [-1, end]}
    for index, (launch, (begin, length)) in enumerate(offsets.items()):
        if index:
            rule(layout, x=begin, colour="@grid")
        style = {"yanchor": "bottom", "font": {"size": 11, "color": "@muted"}, "yshift": 8}
        note(layout, f"launch {launch}", x=begin + length / 2, y=1, xref="x", **style)
    return layout


def _add_panel(layout: Figure, number: int, *, title: str, **axis: Any) -> None:
    """A panel's axis, with its title above."""
    layout[f"yaxis{_axis(number)[1:]}"] = layout["yaxis"] | axis | {"automargin": True}
    note(layout, title, x=0, y=1, yref=f"{_axis(number)} domain", xanchor="left", yanchor="bottom")
