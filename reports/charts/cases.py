"""Charts of a micro-benchmark: one small panel for each operation, sizes or numbers of workers along it, a line for each arm."""

from __future__ import annotations

import html
import math

from measurement.records.record import Case
from reports.charts.frame import Figure, arm_style, base_layout, legend_above, line, note
from reports.schema import ArmSummary, Comparison
from reports.tables.arm_tables import case_figures
from reports.wording.formatting import size_text

PANEL_PX = 250
COLUMNS = 2
GAP = 0.07
"""Left of a panel and right of it: room for the ticks of the next, on a phone, too."""


def case_chart(comparison: Comparison, figure: str, scale: float, unit: str) -> Figure | None:
    """A figure of cases, along their sizes both logarithmic, along numbers of workers from zero on; None where nobody has it."""
    operations = comparison.operations()
    if not any(getattr(figures, figure) for arm in comparison.arms for figures in arm.cases):
        return None
    rows = math.ceil(len(operations) / COLUMNS)
    layout = base_layout(PANEL_PX * rows, "")
    legend_above(layout)
    layout["margin"] |= {"t": 60, "l": 44}
    frames = {"x": layout.pop("xaxis"), "y": layout.pop("yaxis")}
    traces: list[Figure] = []
    named: set[str] = set()
    for number, (operation, cases) in enumerate(operations.items()):
        suffix = str(number + 1) if number else ""
        left, top = _add_axes(layout, frames, cases, number=number, rows=rows)
        note(layout, f"<b>{html.escape(operation)}</b>, {unit}", x=left, y=top, xanchor="left", yanchor="bottom")
        for arm in comparison.arms:
            trace = _line(comparison, arm, cases, figure, scale)
            if trace["x"]:
                traces.append(trace | {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "showlegend": arm.name not in named})
                named.add(arm.name)
    return {"data": traces, "layout": layout}


def _add_axes(layout: Figure, frames: dict[str, Figure], cases: list[Case], *, number: int, rows: int) -> tuple[float, float]:
    """Add one operation's axes; returns the upper left corner of its panel."""
    row, column = divmod(number, COLUMNS)
    suffix = str(number + 1) if number else ""
    left, right = column / COLUMNS + GAP * column, (column + 1) / COLUMNS - GAP * (COLUMNS - 1 - column)
    top, bottom = 1 - row / rows - 0.16 / rows, 1 - (row + 1) / rows + 0.08 / rows
    ticks = {"tickvals": _places(cases), "ticktext": [html.escape(size_text(case)) for case in cases]}
    log = {"rangemode": "tozero"} if cases[0].samples else {"type": "log", "zeroline": False}
    horizontal = {"domain": [left, right], "anchor": f"y{suffix}", "tickangle": 0}
    vertical = {"domain": [bottom, top], "anchor": f"x{suffix}", "nticks": 4, "tickformat": ",.4~r", "automargin": True}
    layout[f"xaxis{suffix}"] = frames["x"] | log | ticks | horizontal
    layout[f"yaxis{suffix}"] = frames["y"] | log | vertical
    return left, top


def _places(cases: list[Case]) -> list[int]:
    """Where cases stand along a panel: by size; numbers of workers one after another."""
    return [number if case.samples else case.message_bytes for number, case in enumerate(cases)]


def _line(comparison: Comparison, arm: ArmSummary, cases: list[Case], figure: str, scale: float) -> Figure:
    figures = [(place, case, arm.case(case.name)) for place, case in zip(_places(cases), cases, strict=True)]
    shown = [(place, case, own, found) for place, case, own in figures if (found := getattr(own, figure))]
    return line(
        name=arm.name,
        legendgroup=arm.name,
        x=[place for place, _, _, _ in shown],
        y=[found.times(scale).value for _, _, _, found in shown],
        customdata=[[html.escape(size_text(case)), *case_figures(own)[:2]] for _, case, own, _ in shown],
        style=arm_style(comparison, arm.name),
        marker={"size": 6},
        hover=f"{arm.name}, %{{customdata[0]}}: %{{customdata[1]}}, {'' if comparison.are_loaders else 'bus '}%{{customdata[2]}}",
    )
