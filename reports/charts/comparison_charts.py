"""The charts of the page as plain Plotly figures (dicts), readable with two arms and with twelve."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

import pandas as pd

from measurement.plans.settings import Quantity
from measurement.records.record import Case
from reports.charts.frame import (
    LOGARITHMIC,
    WIDEST,
    Figure,
    arm_colour,
    arm_style,
    base_layout,
    bounded_axis,
    curve_layout,
    error_bars,
    legend_above,
    line,
    log_axis,
    note,
    rule,
)
from reports.conclusions.blocks import totals
from reports.conclusions.step_terms import TERMS
from reports.parts_schema import Band
from reports.schema import ArmSummary, Comparison, RatioSummary
from reports.tables.arm_tables import case_figures
from reports.wording.causes import TERM_NAMES
from reports.wording.formatting import ratio, size_text

BARS_PX, BAR_PX = 88, 34
"""Height of a chart of bars without any, and of a bar."""


def charts(comparison: Comparison) -> dict[str, Figure]:
    """Every chart that has data, by name: those of a micro-benchmark, or those of a workload that is trained."""
    makers: dict[str, Callable[[Comparison], Figure | None]] = {
        "launches": launches_chart,
        "pairs": pairs_chart,
        "terms": terms_chart,
        "losses": losses_chart,
    }
    made = {name: maker(comparison) for name, maker in makers.items() if not comparison.cases}
    if comparison.cases:
        made = {
            "loading": case_chart(comparison, "samples_per_s", 1.0, "samples/s"),
            "latency": case_chart(comparison, "latency_s", 1e6, "µs") if not comparison.are_loaders else None,
            "busbw": case_chart(comparison, "busbw_bytes_per_s", 1e-9, "GB/s"),
        }
    known = {name: figure for name, figure in made.items() if figure is not None}
    return known | curve_charts(comparison)


def terms_chart(comparison: Comparison) -> Figure | None:
    """One stacked bar per arm; a term that no arm has is left out, a part below 0 goes left."""
    found = {arm.name: arm.step_terms_s for arm in comparison.arms if arm.step_terms_s}
    by_term = {term: [terms.of(term) for terms in found.values()] for term in TERMS}
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": TERM_NAMES[term],
            "y": list(found),
            "x": [1e3 * value.value if value else 0.0 for value in values],
            "marker": {"color": f"@term-{number}"},
            "hovertemplate": f"%{{y}}, {TERM_NAMES[term]}: %{{x:.2f}} ms<extra></extra>",
        }
        for number, (term, values) in enumerate(by_term.items())
        if any(values)
    ]
    layout = base_layout(BARS_PX + BAR_PX * len(found), "ms per step") | {"barmode": "relative", "bargap": 0.35}
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False}
    legend_above(layout)
    layout["margin"]["t"] = 34
    return {"data": traces, "layout": layout} if found else None


def losses_chart(comparison: Comparison) -> Figure | None:
    """The losses of scripts against samples: one curve for each arm, the mean over ranks and launches; None without any."""
    if comparison.equality is None or not comparison.equality.loss:
        return None
    traces = [
        line(
            name=arm,
            x=loss.samples,
            y=loss.curve,
            style=arm_style(comparison, arm),
            hover=f"{arm}: %{{y:.4~g}} at %{{x:,.0f}}",
            connectgaps=True,  # arms need not log the loss of the same steps
        )
        for arm, loss in comparison.equality.loss.items()
    ]
    layout = curve_layout(320, f"{comparison.equality.loss_unit} since the start, all ranks", "loss")
    layout["xaxis"] |= {"rangemode": "tozero"}
    return {"data": traces, "layout": layout}


CURVE_TITLES: dict[Quantity, str] = {
    "held_out_top1": "held-out accuracy (top-1)",
    "held_out_top5": "held-out top-5 accuracy",
    "held_out_loss": "held-out loss",
    "train_top1": "training accuracy (top-1)",
    "train_top5": "training top-5 accuracy",
    "train_loss": "training loss",
}
SHARES: set[Quantity] = {"held_out_top1", "held_out_top5", "train_top1", "train_top5"}
"""Drawn in percent."""
AXES = {"epochs": "epochs", "time": "seconds of training"}
HEIGHT = 320
BAND_OPACITY = 0.16


def curve_charts(comparison: Comparison) -> dict[str, Figure]:
    """Charts by name, such as ``curve_held_out_top1_epochs``; of quantities that no arm has, none."""
    found = {
        curve_name(quantity, axis): _chart(comparison, quantity, axis)
        for quantity in CURVE_TITLES
        for axis in AXES
        if comparison.training
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def curve_name(quantity: Quantity, axis: str) -> str:
    """A chart's name on the page."""
    return f"curve_{quantity}_{axis}"


def _chart(comparison: Comparison, quantity: Quantity, axis: str) -> Figure | None:
    assert comparison.training is not None
    curves = {arm.name: arm.curve for arm in comparison.training.arms if arm.curve and quantity in arm.curve.bands}
    if not curves:
        return None
    traces: list[Figure] = []
    for name, curve in curves.items():
        x = list(curve.train_s) if axis == "time" else [float(done + 1) for done in range(len(curve.train_s))]
        band, colour = curve.bands[quantity], arm_colour(comparison, name)
        traces.append(_band(x, band) | {"fillcolor": colour, "legendgroup": name})
        hover = f"{name}: %{{y:.4~g}} at %{{x:.3~g}}"
        traces.append(line(name=name, legendgroup=name, x=x, y=band.mean, style={"color": colour}, hover=hover))
    layout = curve_layout(HEIGHT, AXES[axis], CURVE_TITLES[quantity])
    layout["yaxis"]["title"] |= {"standoff": 8}
    layout["xaxis"] |= {"rangemode": "tozero"}
    if quantity in SHARES:
        layout["yaxis"] |= {"tickformat": ".1~%"}
    if quantity == "held_out_top1" and comparison.training.settings.target_accuracy is not None:
        rule(layout, y=comparison.training.settings.target_accuracy, colour="@muted", dash="dot")
    return {"data": traces, "layout": layout}


def _band(x: Sequence[float], band: Band) -> Figure:
    """A closed line: along the least of the seeds, back along the most; without epochs at which a seed has no value."""
    known = [(place, low, high) for place, low, high in zip(x, band.low, band.high, strict=True) if low is not None]
    return {
        "type": "scatter",
        "mode": "none",
        "fill": "toself",
        "opacity": BAND_OPACITY,
        "hoverinfo": "skip",
        "showlegend": False,
        "x": [place for place, _, _ in known] + [place for place, _, _ in reversed(known)],
        "y": [low for _, low, _ in known] + [high for _, _, high in reversed(known)],
    }


PANEL_PX = 250
PANELS_IN_A_ROW = 2


def case_chart(comparison: Comparison, figure: str, scale: float, unit: str) -> Figure | None:
    """A figure of cases, along their sizes both logarithmic, along numbers of workers from zero on; None where nobody has it."""
    operations = comparison.operations()
    if not any(getattr(figures, figure) for arm in comparison.arms for figures in arm.cases):
        return None
    rows = math.ceil(len(operations) / PANELS_IN_A_ROW)
    layout = base_layout(PANEL_PX * rows, "")
    legend_above(layout)
    layout["margin"] |= {"t": 60, "l": 44}
    gaps = {"xgap": 0.25, "ygap": 0.32}  # room for ticks on a phone, too, and for a title
    domain = {"y": [0, 1 - 0.16 / rows]}
    layout["grid"] = {"rows": rows, "columns": PANELS_IN_A_ROW, "pattern": "independent", "domain": domain} | gaps
    frames = {"x": layout.pop("xaxis"), "y": layout.pop("yaxis")}
    traces: list[Figure] = []
    named: set[str] = set()
    for number, (operation, cases) in enumerate(operations.items()):
        suffix = str(number + 1) if number else ""
        log = {"rangemode": "tozero"} if cases[0].samples else {"type": "log", "zeroline": False}
        ticks = {"tickvals": _places(cases), "ticktext": [html.escape(size_text(case)) for case in cases], "tickangle": 0}
        layout[f"xaxis{suffix}"] = frames["x"] | log | ticks
        layout[f"yaxis{suffix}"] = frames["y"] | log | {"nticks": 4, "tickformat": ",.4~r", "automargin": True}
        corner = {"xref": f"x{suffix} domain", "yref": f"y{suffix} domain", "xanchor": "left", "yanchor": "bottom"}
        note(layout, f"<b>{html.escape(operation)}</b>, {unit}", x=0, y=1, **corner)
        for arm in comparison.arms:
            trace = _case_line(comparison, arm, cases, figure, scale)
            if trace["x"]:
                traces.append(trace | {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "showlegend": arm.name not in named})
                named.add(arm.name)
    return {"data": traces, "layout": layout}


def _places(cases: list[Case]) -> list[int]:
    """Where cases stand along a panel: by size; numbers of workers one after another."""
    return [number if case.samples else case.message_bytes for number, case in enumerate(cases)]


def _case_line(comparison: Comparison, arm: ArmSummary, cases: list[Case], figure: str, scale: float) -> Figure:
    figures = [(place, case, arm.case(case.name)) for place, case in zip(_places(cases), cases, strict=True)]
    shown = [(place, case, own, found) for place, case, own in figures if (found := getattr(own, figure))]
    return line(
        name=arm.name,
        legendgroup=arm.name,
        x=[place for place, _, _, _ in shown],
        y=[found.times(scale).value for _, _, _, found in shown],
        customdata=[[html.escape(size_text(case)), *case_figures(own)] for _, case, own, _ in shown],
        style=arm_style(comparison, arm.name),
        marker={"size": 6},
        hover=f"{arm.name}, %{{customdata[0]}}: %{{customdata[1]}}, %{{customdata[2]}}",
    )


LAUNCHES_PX = 56
"""Height of an arm's row."""
SPREAD = 0.6
"""Share of a row's height that its dots take."""


def launches_chart(comparison: Comparison) -> Figure | None:
    """A row for each arm: a dot for each launch, the first at the top, and below them the arm's throughput with its interval.

    None where no arm has several launches.
    """
    rows = {arm.name: arm.throughput_per_s for arm in comparison.arms if arm.throughput_per_s}
    if max((comparison.arm(name).launches for name in rows), default=0) < 2:
        return None
    by_launch = totals(pd.DataFrame(comparison.block_table), ["arm", "launch"])["throughput_per_s"]
    layout = base_layout(BARS_PX + LAUNCHES_PX * len(rows), f"{html.escape(comparison.sample_unit)}/s, of all ranks")
    layout["xaxis"] |= {"tickformat": ",.4~r"} | bounded_axis([*rows.values()], *by_launch[[*rows]], may_be_log=True)
    names = {"tickvals": [*range(len(rows))], "ticktext": [*rows]}
    layout["yaxis"] |= names | {"range": [len(rows) - 0.45, -0.5], "automargin": True, "showgrid": False}
    traces = []
    for number, (name, mean) in enumerate(rows.items()):
        known, colour = by_launch[name], arm_colour(comparison, name)
        places = [number + SPREAD * ((at + 0.5) / len(known) - 0.5) for at in range(len(known))]
        dots = {"x": known.tolist(), "y": places, "customdata": known.index.tolist()}
        mark = {"x": [mean.value], "y": [number + 0.42], "error_x": error_bars([mean], color=colour, thickness=2, width=5)}
        for trace, style, what in (
            (dots, {"size": 8, "opacity": 0.6}, "launch %{customdata}"),
            (mark, {"size": 10, "symbol": "diamond"}, "all"),
        ):
            hover = f"{name}, {what}: %{{x:.4~g}}<extra></extra>"
            look = {"marker": style | {"color": colour}, "hovertemplate": hover, "cliponaxis": False}
            traces.append({"type": "scatter", "mode": "markers"} | look | trace)
    return {"data": traces, "layout": layout}


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
        axis |= log_axis(*limits) | {"dtick": "D2" if reach < 100 else 1}  # by themselves ticks are at every digit
    traces = []
    for number, result in enumerate(shown, start=1):
        points = _pair_points(result, offsets, pair_stride(comparison), limits)
        points["marker"] |= {"color": arm_colour(comparison, result.candidate), "opacity": 0.75}
        traces.append(points | {"yaxis": _axis(number)})
        layout[f"yaxis{_axis(number)[1:]}"] = layout["yaxis"] | axis | {"automargin": True}
        title = f"<b>{result.candidate}</b>  {ratio(result.throughput_ratio)}"
        note(layout, title, x=0, y=1, yref=f"{_axis(number)} domain", xanchor="left", yanchor="bottom")
        rule(layout, y=1, yref=_axis(number))
        if result.throughput_ratio is not None:
            rule(layout, y=result.throughput_ratio, yref=_axis(number), colour="@accent", width=1.5, dash="dash")
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


def _launch_offsets(results: Sequence[RatioSummary]) -> Offsets:
    lengths: dict[int, float] = {}
    for result in results:
        for launch, turn in zip(result.pair_table["launch"], result.pair_table["turn"], strict=True):
            lengths[launch] = max(lengths.get(launch, 0.0), turn + 1.0)
    offsets, begin = {}, 0.0
    for launch, length in sorted(lengths.items()):
        offsets[launch] = (begin, length)
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


def _layout(panels: int, offsets: Offsets) -> Figure:
    """A frame for panels one below the other; launches have an edge between them and their numbers above."""
    layout = base_layout(FRAME_PX + PAIRS_PX * panels, "turn (launches side by side)")
    layout["margin"] |= {"t": 30}
    gap = GAP_PX / PAIRS_PX
    subplots = [[f"x{_axis(number)}"] for number in range(1, panels + 1)]
    layout["grid"] = {"subplots": subplots, "ygap": gap, "domain": {"y": [0, 1 - 0.7 * gap / panels]}}
    end = max(begin + length for begin, length in offsets.values())
    layout["xaxis"] |= {"showticklabels": False, "showgrid": False, "anchor": _axis(panels), "range": [-1, end]}
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
