"""The chart of what the loaders alone deliver."""

from __future__ import annotations

import html

from measurement.records.loader_record import LoaderRecord
from reports.charts.frame import COLOURS, Figure, curve_layout, error_bars, line, note, rule
from reports.conclusions.loaders import LoaderDemand, LoaderGroup, loading_rates
from reports.schema import Estimate

CHART_PX = 400


def loading_chart(record: LoaderRecord, need: LoaderDemand | None) -> Figure:
    """Samples per second by number of workers: a line for every host, where there are several, and one for all."""
    shown = {
        place: found
        for place, found in loading_rates(record).items()
        if place.kind == "all" or (place.kind == "host" and len(record.cores) > 1)
    }
    colours = [f"@arm-{number % COLOURS}" for number in range(len(shown) - 1)] + ["@baseline"]
    layout = curve_layout(CHART_PX, "loader workers per rank", f"{html.escape(record.sample_unit)} per second")
    layout["xaxis"] |= {"tickvals": sorted({turn.workers for turn in record.turns})}
    layout["yaxis"] |= {"rangemode": "tozero"}
    layout["margin"]["t"] = 34
    if need:
        height = need.samples_per_s * record.world_size
        rule(layout, y=height, colour="@muted", width=1.5, dash="dash")
        text = f"training ({html.escape(need.arm)}) needs"
        style = {"xanchor": "right", "yanchor": "bottom", "font": {"size": 12, "color": "@muted"}}
        note(layout, text, x=1, y=height, yref="y", **style)
    lines = [_line(place, found, colour) for (place, found), colour in zip(shown.items(), colours, strict=True)]
    return {"data": lines, "layout": layout}


def _line(place: LoaderGroup, found: dict[int, Estimate], colour: str) -> Figure:
    name = html.escape(place.host) or "all ranks"
    return line(
        name=name,
        x=found,
        y=[one.value for one in found.values()],
        error_y=error_bars(list(found.values()), width=4, color=colour),
        style={"color": colour},
        marker={"size": 7},
        hover=f"{name}, %{{x}} workers: %{{y:,.4~g}}/s",
    )
