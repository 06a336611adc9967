"""The charts of the page as plain Plotly figures (dicts), readable with two arms and with twelve."""

from __future__ import annotations

from collections.abc import Callable

from reports.charts.cases import busbw_chart, latency_chart, loading_chart
from reports.charts.frame import (
    Figure,
    arm_style,
    curve_layout,
    line,
    padded,
)
from reports.charts.terms import difference_charts, terms_chart
from reports.charts.timeline import machine_chart, pairs_chart
from reports.charts.trace_chart import trace_chart
from reports.charts.training_charts import curve_charts
from reports.schema import Comparison


def charts(comparison: Comparison) -> dict[str, Figure]:
    """Every chart that has data, by name: those of a micro-benchmark, or those of a workload that is trained."""
    makers: dict[str, Callable[[Comparison], Figure | None]] = {
        "pairs": pairs_chart,
        "machine": machine_chart,
        "distribution": distribution_chart,
        "terms": terms_chart,
        "losses": losses_chart,
        "traces": trace_chart,
    }
    if comparison.cases:
        makers = {"loading": loading_chart} if comparison.are_loaders else {"latency": latency_chart, "busbw": busbw_chart}
    made = {name: maker(comparison) for name, maker in makers.items()}
    known = {name: figure for name, figure in made.items() if figure is not None}
    return known | difference_charts(comparison) | curve_charts(comparison)


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
        )
        for arm, loss in comparison.equality.loss.items()
    ]
    layout = curve_layout(320, f"{comparison.equality.loss_unit} since the start, all ranks", "loss")
    layout["xaxis"] |= {"rangemode": "tozero"}
    return {"data": traces, "layout": layout}
