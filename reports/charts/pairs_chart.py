"""The chart of every pair of blocks, as a plain Plotly figure: one panel for each ratio, launches
side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.charts.frame import (
    LOGARITHMIC,
    MAX_REACH,
    Figure,
    arm_colour,
    base_layout,
    log_axis,
    note,
    rule,
)
from reports.schema import Comparison, RatioSummary
from reports.wording.formatting import ratio

MAX_POINTS = 5000
"""Beyond, every n-th pair is drawn."""
PAIRS_PX, FRAME_PX, GAP_PX = 130, 64, 32
"""Height of a panel, of what is above and below all of them, and between two, for a title."""
MAX_LABELLED = 5
"""That have room for a word each, on a phone, too."""
Limits = tuple[float, float]
Offsets = dict[int, tuple[float, float]]
"""Per launch, where it begins on the common axis and how long it is, in turns."""


def pairs_chart(comparison: Comparison) -> Figure | None:
    """Every pair of blocks in order of its turn, one panel per ratio, launches side by side."""
    shown = [result for result in comparison.results if result.pairs]
    if not shown:
        return None
    limits, offsets = _pair_range(shown), _launch_offsets(shown)
    layout = _layout(len(shown), offsets)
    axis = {"range": list(limits), "nticks": 5, "tickformat": ".3~f"}
    if (reach := limits[1] / limits[0]) > LOGARITHMIC:
        # by themselves ticks are at every digit
        axis |= log_axis(*limits) | {"dtick": "D2" if reach < 100 else 1}
    traces = []
    for number, result in enumerate(shown, start=1):
        points = _pair_points(result, offsets, pair_stride(comparison), limits)
        points["marker"] |= {"color": arm_colour(comparison, result.candidate), "opacity": 0.75}
        traces.append(points | {"yaxis": _axis(number)})
        layout[f"yaxis{_axis(number)[1:]}"] = layout["yaxis"] | axis | {"automargin": True}
        title = f"<b>{result.candidate}</b>  {ratio(result.throughput_ratio)}"
        note(
            layout,
            title,
            x=0,
            y=1,
            yref=f"{_axis(number)} domain",
            xanchor="left",
            yanchor="bottom",
        )
        rule(layout, y=1, yref=_axis(number))
        if result.throughput_ratio is not None:
            rule(
                layout,
                y=result.throughput_ratio,
                yref=_axis(number),
                colour="@accent",
                width=1.5,
                dash="dash",
            )
    return {"data": traces, "layout": layout}


def pair_stride(comparison: Comparison) -> int:
    """One of so many pairs is drawn."""
    return max(1, math.ceil(sum(result.pairs for result in comparison.results) / MAX_POINTS))


def _pair_range(results: Sequence[RatioSummary]) -> Limits:
    """All but the outermost hundredth of the pairs, and 1; not far beyond the ratios that they have
    together.
    """
    logs = sorted(value for result in results for value in result.pair_table["log_ratio"])
    edge, ratio_logs = (
        len(logs) // 100,
        [math.log(result.throughput_ratio) for result in results if result.throughput_ratio],
    )
    low = max(min(0.0, logs[edge]), min([0.0, *ratio_logs]) - math.log(MAX_REACH))
    high = min(max(0.0, logs[-1 - edge]), max([0.0, *ratio_logs]) + math.log(MAX_REACH))
    room = 0.08 * (high - low) + 0.002
    return math.exp(low - room), math.exp(high + room)


def _launch_offsets(results: Sequence[RatioSummary]) -> Offsets:
    lengths: dict[int, float] = {}
    for result in results:
        for launch, turn in zip(
            result.pair_table["launch"], result.pair_table["turn"], strict=True
        ):
            lengths[launch] = max(lengths.get(launch, 0.0), turn + 1.0)
    offsets, begin = {}, 0.0
    for launch, length in sorted(lengths.items()):
        offsets[launch] = (begin, length)
        begin += length
    return offsets


def _pair_points(result: RatioSummary, offsets: Offsets, every: int, limits: Limits) -> Figure:
    """A mark for each pair: triangles at the edge where it is beyond the limits."""
    table = result.pair_table
    ratios = [math.exp(value) for value in table["log_ratio"]][::every]
    places = list(zip(table["launch"], table["turn"], strict=True))[::every]
    shapes = [
        "triangle-up" if r > limits[1] else "triangle-down" if r < limits[0] else "circle"
        for r in ratios
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [offsets[launch][0] + turn for launch, turn in places],
        "y": [min(max(value, limits[0]), limits[1]) for value in ratios],
        "marker": {"size": [5 if shape == "circle" else 8 for shape in shapes], "symbol": shapes},
        "customdata": [
            [launch, turn, value] for (launch, turn), value in zip(places, ratios, strict=True)
        ],
        "hovertemplate": (
            "launch %{customdata[0]}, turn %{customdata[1]}: %{customdata[2]:.3f}<extra></extra>"
        ),
        "cliponaxis": False,
    }


def _axis(number: int) -> str:
    """What Plotly calls a panel's vertical axis."""
    return f"y{number}" if number > 1 else "y"


def _layout(panels: int, offsets: Offsets) -> Figure:
    """A frame for panels one below the other; launches have an edge between them and their numbers
    above.
    """
    layout = base_layout(FRAME_PX + PAIRS_PX * panels, "turn (launches side by side)")
    layout["margin"] |= {"t": 30}
    gap = GAP_PX / PAIRS_PX
    subplots = [[f"x{_axis(number)}"] for number in range(1, panels + 1)]
    layout["grid"] = {
        "subplots": subplots,
        "ygap": gap,
        "domain": {"y": [0, 1 - 0.7 * gap / panels]},
    }
    end = max(begin + length for begin, length in offsets.values())
    layout["xaxis"] |= {
        "showticklabels": False,
        "showgrid": False,
        "anchor": _axis(panels),
        "range": [-1, end],
    }
    for index, (launch, (begin, length)) in enumerate(offsets.items()):
        if index:
            rule(layout, x=begin, colour="@grid")
        style = {"yanchor": "bottom", "font": {"size": 11, "color": "@muted"}, "yshift": 8}
        note(
            layout,
            f"launch {launch}" if len(offsets) <= MAX_LABELLED else f"{launch}",
            x=begin + length / 2,
            y=1,
            xref="x",
            **style,
        )
    return layout
