"""The charts of the page as plain Plotly figures (dicts), readable with two arms and with twelve:
those of arms and of cases. ``curves`` draws lines.
"""

from __future__ import annotations

import html
import itertools
import math

import pandas as pd

from measurement.records.record import Case
from reports.conclusions.step_terms import TERMS
from reports.conclusions.steps import totals
from reports.formats.curves import (
    AXES,
    CURVE_TITLES,
    Figure,
    arm_colour,
    arm_style,
    base_layout,
    bounded_axis,
    curve_name,
    error_bars,
    legend_above,
    line,
    losses_chart,
    training_curve,
)
from reports.schema import ArmSummary, Comparison
from reports.tables.arm_tables import case_figures
from reports.wording.causes import TERM_NAMES
from reports.wording.formatting import size_text

BARS_PX, BAR_PX = 88, 34
"""Height of a chart of bars without any, and of a bar."""


def charts(comparison: Comparison) -> dict[str, Figure]:
    """Every chart that has data, by name: those of a micro-benchmark, or those of a workload that
    is trained.
    """
    if comparison.cases:
        made = {
            "loading": case_chart(comparison, "samples_per_s", 1.0, "samples/s"),
            "latency": case_chart(comparison, "latency_s", 1e6, "µs"),
            "busbw": case_chart(comparison, "busbw_bytes_per_s", 1e-9, "GB/s"),
        }
        if comparison.are_loaders:
            del made["latency"]
    else:
        made = {
            "launches": launches_chart(comparison),
            "terms": terms_chart(comparison),
            "losses": losses_chart(comparison),
        }
    for quantity, axis in itertools.product(CURVE_TITLES, AXES) if comparison.training else ():
        made[curve_name(quantity, axis)] = training_curve(comparison, quantity, axis)
    return {name: figure for name, figure in made.items() if figure is not None}


def terms_chart(comparison: Comparison) -> Figure | None:
    """One stacked bar per arm; a term that no arm has is left out, a part below 0 goes left."""
    terms_by_arm = {arm.name: arm.step_terms_s for arm in comparison.arms if arm.step_terms_s}
    by_term = {term: [terms.of(term) for terms in terms_by_arm.values()] for term in TERMS}
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": TERM_NAMES[term],
            "y": list(terms_by_arm),
            "x": [1e3 * value.value if value else 0.0 for value in values],
            "marker": {"color": f"@term-{number}"},
            "hovertemplate": f"%{{y}}, {TERM_NAMES[term]}: %{{x:.2f}} ms<extra></extra>",
        }
        for number, (term, values) in enumerate(by_term.items())
        if any(values)
    ]
    layout = base_layout(BARS_PX + BAR_PX * len(terms_by_arm), "ms per step") | {
        "barmode": "relative",
        "bargap": 0.35,
    }
    layout["yaxis"] |= {
        "type": "category",
        "autorange": "reversed",
        "automargin": True,
        "showgrid": False,
    }
    legend_above(layout)
    layout["margin"]["t"] = 34
    return {"data": traces, "layout": layout} if terms_by_arm else None


PANEL_PX = 250
PANELS_IN_A_ROW = 2


def case_chart(comparison: Comparison, figure: str, scale: float, unit: str) -> Figure | None:
    """A figure of cases, along their sizes both logarithmic, along numbers of workers from zero on;
    None where no arm has it.
    """
    operations = comparison.operations()
    if not any(getattr(figures, figure) for arm in comparison.arms for figures in arm.cases):
        return None
    rows = math.ceil(len(operations) / PANELS_IN_A_ROW)
    layout = base_layout(PANEL_PX * rows, "")
    legend_above(layout)
    layout["margin"] |= {"t": 60, "l": 44}
    layout["grid"] = {
        "rows": rows,
        "columns": PANELS_IN_A_ROW,
        "pattern": "independent",
        "domain": {"y": [0, 1 - 0.16 / rows]},
        "xgap": 0.25,  # room for ticks on a phone, too, and for a title
        "ygap": 0.32,
    }
    x_axis, y_axis = layout.pop("xaxis"), layout.pop("yaxis")
    traces: list[Figure] = []
    named: set[str] = set()
    for number, (operation, cases) in enumerate(operations.items()):
        suffix = str(number + 1) if number else ""
        log = {"rangemode": "tozero"} if cases[0].samples else {"type": "log", "zeroline": False}
        ticks = {
            "tickvals": _places(cases),
            "ticktext": [html.escape(size_text(case)) for case in cases],
            "tickangle": 0,
        }
        layout[f"xaxis{suffix}"] = x_axis | log | ticks
        layout[f"yaxis{suffix}"] = (
            y_axis | log | {"nticks": 4, "tickformat": ",.4~r", "automargin": True}
        )
        layout["annotations"].append(
            {
                "text": f"<b>{html.escape(operation)}</b>, {unit}",
                "font": {"size": 12},
                "showarrow": False,
                "x": 0,
                "y": 1,
                "xref": f"x{suffix} domain",
                "yref": f"y{suffix} domain",
                "xanchor": "left",
                "yanchor": "bottom",
            }
        )
        for arm in comparison.arms:
            trace = _case_line(comparison, arm, cases, figure, scale)
            if trace["x"]:
                traces.append(
                    trace
                    | {
                        "xaxis": f"x{suffix}",
                        "yaxis": f"y{suffix}",
                        "showlegend": arm.name not in named,
                    }
                )
                named.add(arm.name)
    return {"data": traces, "layout": layout}


def _places(cases: list[Case]) -> list[int]:
    """The positions of cases on the x axis: their size, or for loaders 0, 1, 2, ..."""
    return [number if case.samples else case.message_bytes for number, case in enumerate(cases)]


def _case_line(
    comparison: Comparison, arm: ArmSummary, cases: list[Case], figure: str, scale: float
) -> Figure:
    shown = [
        (place, case, case_of_arm, estimate)
        for place, case in zip(_places(cases), cases, strict=True)
        if (estimate := getattr(case_of_arm := arm.case(case.name), figure))
    ]
    return line(
        name=arm.name,
        legendgroup=arm.name,
        x=[place for place, _, _, _ in shown],
        y=[estimate.times(scale).value for _, _, _, estimate in shown],
        customdata=[
            [html.escape(size_text(case)), *case_figures(case_of_arm)]
            for _, case, case_of_arm, _ in shown
        ],
        style=arm_style(comparison, arm.name),
        marker={"size": 6},
        hover=f"{arm.name}, %{{customdata[0]}}: %{{customdata[1]}}, %{{customdata[2]}}",
    )


LAUNCHES_PX = 56
"""Height of an arm's row."""
SPREAD = 0.6
"""Share of a row's height that its dots take."""


def launches_chart(comparison: Comparison) -> Figure | None:
    """A row for each arm: a dot for each launch, the first at the top, and below them the arm's
    throughput with its interval.

    None where no arm has several launches.
    """
    rows = {arm.name: arm.throughput_per_s for arm in comparison.arms if arm.throughput_per_s}
    if max((comparison.arm(name).launches for name in rows), default=0) < 2:
        return None
    by_launch = totals(pd.DataFrame(comparison.block_table), ["arm", "launch"])["throughput_per_s"]
    layout = base_layout(
        BARS_PX + LAUNCHES_PX * len(rows), f"{html.escape(comparison.sample_unit)}/s, of all ranks"
    )
    layout["xaxis"] |= {"tickformat": ",.4~r"} | bounded_axis(
        [*rows.values()], *by_launch[[*rows]], may_be_log=True
    )
    layout["yaxis"] |= {
        "tickvals": list(range(len(rows))),
        "ticktext": list(rows),
        "range": [len(rows) - 0.45, -0.5],
        "automargin": True,
        "showgrid": False,
    }
    traces = []
    for number, (name, mean) in enumerate(rows.items()):
        throughputs, colour = by_launch[name], arm_colour(comparison, name)
        places = [
            number + SPREAD * ((at + 0.5) / len(throughputs) - 0.5)
            for at in range(len(throughputs))
        ]
        dots = {"x": throughputs.tolist(), "y": places, "customdata": throughputs.index.tolist()}
        mark = {
            "x": [mean.value],
            "y": [number + 0.42],
            "error_x": error_bars([mean], color=colour, thickness=2, width=5),
        }
        for trace, style, what in (
            (dots, {"size": 8, "opacity": 0.6}, "launch %{customdata}"),
            (mark, {"size": 10, "symbol": "diamond"}, "all"),
        ):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "marker": style | {"color": colour},
                    "hovertemplate": f"{name}, {what}: %{{x:.4~g}}<extra></extra>",
                    "cliponaxis": False,
                    **trace,
                }
            )
    return {"data": traces, "layout": layout}
