"""Learning curves of all arms, against epochs and against training time: the mean over seeds, and a band from least to most."""

from __future__ import annotations

from collections.abc import Sequence

from measurement.plans.settings import Quantity
from reports.charts.frame import Figure, arm_colour, curve_layout, line, rule
from reports.schema import Comparison
from reports.training_schema import Band

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
