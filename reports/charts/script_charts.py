"""The losses of scripts against samples: one curve for each arm, the mean over ranks and launches."""

from __future__ import annotations

from reports.charts.frame import Figure, arm_style, curve_layout, line
from reports.schema import Comparison

HEIGHT = 320


def losses_chart(comparison: Comparison) -> Figure | None:
    """None where no loss was seen."""
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
    layout = curve_layout(HEIGHT, f"{comparison.equality.loss_unit} since the start, all ranks", "loss")
    layout["xaxis"] |= {"rangemode": "tozero"}
    return {"data": traces, "layout": layout}
