"""Learning curves of all arms, against epochs and against training time: the mean over seeds, and a band from least to most."""

from __future__ import annotations

from collections.abc import Sequence

from measurement.plans.settings import Quantity
from reports.charts.frame import Figure, arm_colour, base_layout, legend_above
from reports.schema import Comparison
from reports.training_schema import Band, MeanCurve

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
        x, colour = _places(curve, axis), arm_colour(comparison, name)
        traces += [_band(name, x, curve.bands[quantity], colour), _line(name, x, curve.bands[quantity], colour)]
    layout = base_layout(HEIGHT, AXES[axis])
    legend_above(layout)
    layout["yaxis"] |= {"title": {"text": CURVE_TITLES[quantity], "font": {"size": 12}, "standoff": 8}, "automargin": True}
    layout["xaxis"] |= {"rangemode": "tozero"}
    if quantity in SHARES:
        layout["yaxis"] |= {"tickformat": ".1~%"}
    if quantity == "held_out_top1" and comparison.training.settings.target_accuracy is not None:
        layout["shapes"] = [_target(comparison.training.settings.target_accuracy)]
    return {"data": traces, "layout": layout}


def _places(curve: MeanCurve, axis: str) -> list[float]:
    return list(curve.train_s) if axis == "time" else [float(done + 1) for done in range(len(curve.train_s))]


def _line(name: str, x: Sequence[float], band: Band, colour: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": name,
        "x": list(x),
        "y": band.mean,
        "line": {"color": colour, "width": 2},
        "hovertemplate": f"{name}: %{{y:.4~g}} at %{{x:.3~g}}<extra></extra>",
    }


def _band(name: str, x: Sequence[float], band: Band, colour: str) -> Figure:
    """A closed line: along the least of the seeds, back along the most; without epochs at which a seed has no value."""
    known = [(place, low, high) for place, low, high in zip(x, band.low, band.high, strict=True) if low is not None]
    return {
        "type": "scatter",
        "mode": "none",
        "fill": "toself",
        "fillcolor": colour,
        "opacity": BAND_OPACITY,
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": name,
        "x": [place for place, _, _ in known] + [place for place, _, _ in reversed(known)],
        "y": [low for _, low, _ in known] + [high for _, _, high in reversed(known)],
    }


def _target(accuracy: float) -> Figure:
    line = {"color": "@muted", "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": accuracy, "y1": accuracy, "line": line}
