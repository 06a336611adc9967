"""The chart of what the loaders alone deliver."""

from __future__ import annotations

import html

from measurement.records.loader_record import LoaderRecord
from reports.charts.frame import COLOURS, Figure, base_layout, legend_above
from reports.conclusions.loaders import LoaderDemand, LoaderGroup, loading_rates
from reports.schema import Estimate

CHART_PX = 400


def loading_chart(record: LoaderRecord, need: LoaderDemand | None) -> Figure:
    """Samples per second by number of workers: a line for every host, where there are several, and one for all."""
    rates = loading_rates(record)
    shown = {
        place: found for place, found in rates.items() if place.kind == "all" or (place.kind == "host" and len(record.cores) > 1)
    }
    colours = [f"@arm-{number % COLOURS}" for number in range(len(shown) - 1)] + ["@baseline"]
    layout = base_layout(CHART_PX, "loader workers per rank")
    legend_above(layout)
    workers = sorted({turn.workers for turn in record.turns})
    layout["xaxis"] |= {"tickvals": workers}
    title = f"{html.escape(record.sample_unit)} per second"
    layout["yaxis"] |= {"title": {"text": title, "font": {"size": 12}}, "rangemode": "tozero", "automargin": True}
    layout["margin"]["t"] = 34
    if need:
        _mark_need(layout, need, record.world_size)
    return {
        "data": [_line(place, found, colour) for (place, found), colour in zip(shown.items(), colours, strict=True)],
        "layout": layout,
    }


def _line(place: LoaderGroup, found: dict[int, Estimate], colour: str) -> Figure:
    name = html.escape(place.host) or "all ranks"
    above = [(one.ci_high or one.value) - one.value for one in found.values()]
    below = [one.value - (one.ci_low or one.value) for one in found.values()]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(found),
        "y": [one.value for one in found.values()],
        "error_y": {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "width": 4, "color": colour},
        "line": {"color": colour, "width": 2},
        "marker": {"size": 7},
        "hovertemplate": f"{name}, %{{x}} workers: %{{y:,.4~g}}/s<extra></extra>",
    }


def _mark_need(layout: Figure, need: LoaderDemand, world_size: int) -> None:
    """A dashed line at what all ranks' training takes together."""
    height = need.samples_per_s * world_size
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": height, "y1": height}
    layout["shapes"] = [line | {"line": {"color": "@muted", "width": 1.5, "dash": "dash"}}]
    place = {"xref": "paper", "x": 1, "y": height, "xanchor": "right", "yanchor": "bottom", "showarrow": False}
    layout["annotations"] = [place | {"text": f"training ({html.escape(need.arm)}) needs", "font": {"size": 12, "color": "@muted"}}]
