"""The charts of the page as plain Plotly figures (dicts), readable with two arms and with twelve."""

from __future__ import annotations

import html
from collections.abc import Callable

from measurement.records.record import PHASES
from reports.charts.cases import busbw_chart, latency_chart
from reports.charts.frame import Figure, arm_colour, arm_dash, arm_layout, base_layout, legend_above, padded, ratio_axis
from reports.charts.machine import machine_chart
from reports.charts.pairs import pairs_chart
from reports.charts.terms import difference_charts, terms_chart
from reports.charts.training_charts import curve_charts
from reports.schema import ArmSummary, Comparison, Estimate, RatioSummary
from reports.wording.formatting import NONE, PHASE_NAMES, interval, ratio


def charts(comparison: Comparison) -> dict[str, Figure]:
    """Every chart that has data, by name: those of a micro-benchmark, or those of a workload that is trained."""
    makers: dict[str, Callable[[Comparison], Figure | None]] = {
        "ratios": ratios_chart,
        "throughput": throughput_chart,
        "step_time": step_time_chart,
        "pairs": pairs_chart,
        "machine": machine_chart,
        "distribution": distribution_chart,
        "phases": phases_chart,
        "terms": terms_chart,
    }
    if comparison.cases:
        makers = {"latency": latency_chart, "busbw": busbw_chart}
    made = {name: maker(comparison) for name, maker in makers.items()}
    known = {name: figure for name, figure in made.items() if figure is not None}
    return known | difference_charts(comparison) | curve_charts(comparison)


def ratios_chart(comparison: Comparison) -> Figure | None:
    """Forest plot: each ratio with its interval, the threshold as a band around 1."""
    shown = [result for result in comparison.results if result.throughput_ratio is not None]
    if not shown:
        return None
    traces = [_bar(comparison, result) for result in shown]
    threshold = comparison.measurement["noise_threshold"]
    layout = arm_layout(len(shown), "throughput relative to " + comparison.baseline)
    band = {"type": "rect", "xref": "x", "yref": "paper", "x0": 1 - threshold, "x1": 1 + threshold, "y0": 0, "y1": 1}
    one = {"type": "line", "xref": "x", "yref": "paper", "x0": 1, "x1": 1, "y0": 0, "y1": 1}
    layout["shapes"] = [
        band | {"fillcolor": "@band", "line": {"width": 0}, "layer": "below"},
        one | {"line": {"color": "@text", "width": 1}, "layer": "below"},
    ]
    layout["annotations"] = [_beside(result) for result in shown]
    layout["margin"]["r"] = 175
    ratios = [result.throughput_ratio for result in shown if result.throughput_ratio is not None]
    bounds = [end for result in shown for end in (result.ci_low, result.ci_high) if end is not None]
    span = max(*ratios, *bounds, 1.0) - min(*ratios, *bounds, 1.0)
    layout["xaxis"] |= {"tickformat": ".2~f" if span > 0.1 else ".3~f"} | ratio_axis(ratios, bounds)
    return {"data": traces, "layout": layout}


def _bar(comparison: Comparison, result: RatioSummary) -> Figure:
    estimate = Estimate(value=result.throughput_ratio or 1.0, ci_low=result.ci_low, ci_high=result.ci_high)
    return _point(result.candidate, estimate, arm_colour(comparison, result.candidate), digits=".3f")


def _beside(result: RatioSummary) -> Figure:
    """The figures at the right end of the row, so that the chart can be read without hovering."""
    bounds = f"  ({interval(result)})" if interval(result) != NONE else ""
    place = {"xref": "paper", "yref": "y", "x": 1.01, "y": result.candidate, "xanchor": "left", "showarrow": False}
    return place | {"text": f"{ratio(result.throughput_ratio)}{bounds}", "font": {"size": 12}}


def throughput_chart(comparison: Comparison) -> Figure | None:
    """Throughput of each arm over all its blocks, with its interval."""
    unit = html.escape(comparison.sample_unit)
    return _estimates(comparison, lambda arm: arm.throughput_per_s, f"{unit} per second", digits=",.4~g")


def _estimates(comparison: Comparison, read: Callable[[ArmSummary], Estimate | None], title: str, *, digits: str) -> Figure | None:
    found = [(arm.name, estimate) for arm in comparison.arms if (estimate := read(arm)) is not None]
    if not found:
        return None
    traces = [_point(name, estimate, arm_colour(comparison, name), digits=digits) for name, estimate in found]
    layout = arm_layout(len(found), title)
    layout["xaxis"] |= {"separatethousands": True, "nticks": 6}
    return {"data": traces, "layout": layout}


def _point(name: str, estimate: Estimate, colour: str, *, digits: str) -> Figure:
    trace: Figure = {
        "type": "scatter",
        "mode": "markers",
        "x": [estimate.value],
        "y": [name],
        "marker": {"size": 9, "color": colour},
        "hovertemplate": f"%{{y}}: %{{x:{digits}}}<extra></extra>",
    }
    if estimate.ci_low is not None and estimate.ci_high is not None:
        above, below = estimate.ci_high - estimate.value, estimate.value - estimate.ci_low
        trace["error_x"] = {"type": "data", "symmetric": False, "array": [above], "arrayminus": [below]}
        trace["error_x"] |= {"thickness": 2, "width": 5, "color": colour}
    return trace


def step_time_chart(comparison: Comparison) -> Figure | None:
    """Step time of each arm: p5 to p95 thin, p25 to p75 thick, the median as a dot."""
    arms = [arm for arm in comparison.arms if arm.step_time_s]
    if not arms:
        return None
    traces: list[Figure] = []
    for arm in arms:
        ms = {name: value * 1e3 for name, value in arm.step_time_s.items()}
        colour = arm_colour(comparison, arm.name)
        base = {"type": "scatter", "y": [arm.name] * 2, "mode": "lines", "hoverinfo": "skip"}
        traces += [
            base | {"x": [ms["p5"], ms["p95"]], "line": {"width": 2, "color": colour}},
            base | {"x": [ms["p25"], ms["p75"]], "line": {"width": 8, "color": colour}},
            _point(arm.name, Estimate(value=ms["p50"]), "@background", digits=".2f"),
        ]
        traces[-1]["marker"] |= {"line": {"color": colour, "width": 2}}
    layout = arm_layout(len(arms), "ms per step")
    layout["xaxis"]["range"] = padded([1e3 * arm.step_time_s[p] for arm in arms for p in ("p5", "p95")])
    return {"data": traces, "layout": layout}


def distribution_chart(comparison: Comparison) -> Figure | None:
    """How step times are distributed: the share of steps that took at most so long."""
    arms = [arm for arm in comparison.arms if arm.step_time_quantiles_s]
    if not arms:
        return None
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": arm.name,
            "x": [1e3 * value for value in arm.step_time_quantiles_s],
            "y": list(range(101)),
            "line": {"color": arm_colour(comparison, arm.name), "width": 2, "dash": arm_dash(arm)},
            "hovertemplate": f"{arm.name}: %{{y}}% of steps within %{{x:.2f}} ms<extra></extra>",
        }
        for arm in arms
    ]
    layout = base_layout(340, "ms per step (axis ends at the 99th percentile)")
    legend_above(layout)
    layout["xaxis"]["range"] = padded([1e3 * a.step_time_quantiles_s[q] for a in arms for q in (0, 99)])
    layout["yaxis"] |= {"title": {"text": "steps, %", "font": {"size": 12}}, "range": [0, 101], "automargin": True}
    return {"data": traces, "layout": layout}


def phases_chart(comparison: Comparison) -> Figure | None:
    """Where a step's time goes, stacked."""
    arms = [arm for arm in comparison.arms if arm.phases_s]
    if not arms:
        return None
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": PHASE_NAMES[phase],
            "y": [arm.name for arm in arms],
            "x": [1e3 * arm.phases_s[phase] for arm in arms],
            "marker": {"color": f"@phase-{number}"},
            "hovertemplate": f"%{{y}}, {PHASE_NAMES[phase]}: %{{x:.2f}} ms<extra></extra>",
        }
        for number, phase in enumerate(PHASES)
    ]
    layout = arm_layout(len(arms), "ms per step")
    legend_above(layout)
    layout |= {"barmode": "stack", "bargap": 0.35, "height": layout["height"] + 24}
    layout["margin"]["t"] = 34
    return {"data": traces, "layout": layout}
