"""The charts of the page as plain Plotly figures (dicts), readable with two arms and with twelve."""

from __future__ import annotations

import html
from collections.abc import Callable

from reports.charts.cases import busbw_chart, latency_chart
from reports.charts.frame import (
    Figure,
    arm_colour,
    arm_layout,
    arm_style,
    curve_layout,
    error_bars,
    line,
    note,
    padded,
    ratio_axis,
    rule,
)
from reports.charts.script_charts import losses_chart
from reports.charts.terms import difference_charts, phases_chart, terms_chart
from reports.charts.timeline import machine_chart, pairs_chart
from reports.charts.training_charts import curve_charts
from reports.schema import Comparison, Estimate
from reports.wording.formatting import NONE, interval, ratio


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
        "losses": losses_chart,
    }
    if comparison.cases:
        makers = {"latency": latency_chart, "busbw": busbw_chart}
    made = {name: maker(comparison) for name, maker in makers.items()}
    known = {name: figure for name, figure in made.items() if figure is not None}
    return known | difference_charts(comparison) | curve_charts(comparison)


def ratios_chart(comparison: Comparison) -> Figure | None:
    """Forest plot: each ratio with its interval, the threshold as a band around 1."""
    shown = [(result, result.throughput_ratio) for result in comparison.results if result.throughput_ratio is not None]
    if not shown:
        return None
    layout = arm_layout(len(shown), "throughput relative to " + comparison.baseline)
    threshold = comparison.measurement["noise_threshold"]
    band = {"type": "rect", "xref": "x", "yref": "paper", "x0": 1 - threshold, "x1": 1 + threshold, "y0": 0, "y1": 1}
    layout["shapes"].append(band | {"fillcolor": "@band", "line": {"width": 0}, "layer": "below"})
    rule(layout, x=1)
    traces = []
    for result, value in shown:
        estimate = Estimate(value=value, ci_low=result.ci_low, ci_high=result.ci_high)
        traces.append(_point(result.candidate, estimate, arm_colour(comparison, result.candidate), digits=".3f"))
        bounds = f"  ({interval(result)})" if interval(result) != NONE else ""
        note(layout, f"{ratio(value)}{bounds}", x=1.01, y=result.candidate, yref="y", xanchor="left")
    layout["margin"]["r"] = 175
    ratios = [value for _, value in shown]
    ends = [end for result, _ in shown for end in (result.ci_low, result.ci_high) if end is not None]
    span = max(*ratios, *ends, 1.0) - min(*ratios, *ends, 1.0)
    layout["xaxis"] |= {"tickformat": ".2~f" if span > 0.1 else ".3~f"} | ratio_axis(ratios, ends)
    return {"data": traces, "layout": layout}


def throughput_chart(comparison: Comparison) -> Figure | None:
    """Throughput of each arm over all its blocks, with its interval."""
    found = {arm.name: arm.throughput_per_s for arm in comparison.arms if arm.throughput_per_s is not None}
    if not found:
        return None
    traces = [_point(name, estimate, arm_colour(comparison, name), digits=",.4~g") for name, estimate in found.items()]
    layout = arm_layout(len(found), f"{html.escape(comparison.sample_unit)} per second")
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
        trace["error_x"] = error_bars([estimate], thickness=2, width=5, color=colour)
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
        line(
            name=arm.name,
            x=[1e3 * value for value in arm.step_time_quantiles_s],
            y=range(101),
            style=arm_style(comparison, arm.name),
            hover=f"{arm.name}: %{{y}}% of steps within %{{x:.2f}} ms",
        )
        for arm in arms
    ]
    layout = curve_layout(340, "ms per step (axis ends at the 99th percentile)", "steps, %")
    layout["xaxis"]["range"] = padded([1e3 * a.step_time_quantiles_s[q] for a in arms for q in (0, 99)])
    layout["yaxis"] |= {"range": [0, 101]}
    return {"data": traces, "layout": layout}
