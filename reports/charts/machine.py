"""Strips under the pairs: what the machine did block by block, on the same axis, so that one sees where a disturbance struck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.charts.frame import Figure, base_layout
from reports.charts.pairs import MAX_POINTS, launch_offsets, mark_launches
from reports.schema import Comparison

STRIP_PX, HEAD_PX = 66, 74


@dataclass(frozen=True)
class Strip:
    """One figure of every block."""

    column: str
    """Of ``Comparison.machine_table``."""
    title: str
    scale: float
    colour: str


STRIPS = (
    Strip("others", "% of the ranks' cores taken by others", 100, "@slower"),
    Strip("memory_share", "% of the fullest host's memory used", 100, "@arm-0"),
    Strip("sent_bytes_per_s", "MB/s sent over all interfaces", 1e-6, "@arm-1"),
)


def machine_chart(comparison: Comparison) -> Figure | None:
    """A strip for each figure that is known, launches side by side as under ``pairs_chart``."""
    table = comparison.machine_table
    shown = [strip for strip in STRIPS if any(value is not None for value in table.get(strip.column, []))]
    paired = [result for result in comparison.results if result.pairs]
    if not shown or not paired:
        return None
    offsets = launch_offsets(paired)
    every = max(1, len(table["launch"]) * len(shown) // MAX_POINTS)
    layout = base_layout(HEAD_PX + STRIP_PX * len(shown), "turn (launches side by side)")
    layout["margin"] |= {"t": 30}
    layout["xaxis"] |= {"showticklabels": False, "showgrid": False, "anchor": f"y{len(shown)}" if len(shown) > 1 else "y"}
    layout["shapes"], layout["annotations"] = [], []
    places = [
        offsets[launch][0] + turn if launch in offsets else None
        for launch, turn in zip(table["launch"], table["turn"], strict=True)
    ]
    traces = []
    for number, strip in enumerate(shown, start=1):
        values = [None if value is None else strip.scale * value for value in table[strip.column]]
        traces.append(_line(strip, places[::every], values[::every], number))
        _add_strip(layout, strip, number, len(shown))
    mark_launches(layout, offsets)
    return {"data": traces, "layout": layout}


def _line(strip: Strip, places: Sequence[float | None], values: Sequence[float | None], number: int) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(places),
        "y": list(values),
        "yaxis": f"y{number}" if number > 1 else "y",
        "line": {"color": strip.colour, "width": 1.5, "shape": "hv"},
        "hovertemplate": f"%{{y:.3~g}} {strip.title}<extra></extra>",
    }


def _add_strip(layout: Figure, strip: Strip, number: int, strips: int) -> None:
    """Its axis from 0 on, and its title above."""
    top, gap = 1 - (number - 1) / strips, 20 / (STRIP_PX * strips)
    axis = {"domain": [top - 1 / strips + gap / 4, top - gap], "rangemode": "tozero", "nticks": 3, "automargin": True}
    layout[f"yaxis{number if number > 1 else ''}"] = layout["yaxis"] | axis
    label = {"xref": "paper", "yref": "paper", "x": 0, "y": top - gap, "xanchor": "left", "yanchor": "bottom"}
    layout["annotations"].append(label | {"text": strip.title, "showarrow": False, "font": {"size": 12}})
