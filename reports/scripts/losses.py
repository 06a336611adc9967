"""The losses of scripts: a curve for each arm, and whether an arm's is no worse than the baseline's
by a margin.

A loss is the scalar that ``backward()`` was called on: the mean over ranks and passes, against the
samples of all ranks since the script's start. Where a script was restarted in a launch, its first
start counts. Of each launch the means over the later half of what both arms reached are compared
with each other, since arms of a launch share a seed where they take one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd

from measurement.plans.plan import Plan
from reports.estimate import Estimate
from reports.parts_schema import LossEquality, LossVerdict
from reports.statistics.student import Array, t_interval
from reports.wording.formatting import percent

ONE_SIDED = 0.90
"""Confidence of the two-sided interval whose bounds hold at 95% each."""
EQUAL = 5e-5
"""A share that would be written as 0.00%."""
UNLIKE = (
    "The losses of {} and {} are not compared: a step has another number of backward passes, "
    "and whether each one's loss is a part of it is not known"
)
POINTS = 100
"""Places at which a curve is drawn."""
Curve = tuple[Array, Array]
"""Samples since the start, and the loss there."""


def loss_unit(losses: Mapping[tuple[int, str], pd.DataFrame]) -> Literal["samples", "steps"]:
    """The unit of the x axis: steps where some arm's samples could not be counted."""
    return (
        "samples"
        if all(int(table["samples"].min()) > 0 for table in losses.values() if len(table))
        else "steps"
    )


def curve_of(table: pd.DataFrame, unit: Literal["samples", "steps"]) -> Curve:
    """The loss of one launch of one arm, mean over ranks; steps without a loss are left out."""
    first = table[table["start"] == 0]
    by_step = (
        first.groupby("step").agg(samples=("samples", "sum"), loss=("loss", "mean")).sort_index()
    )
    reached = by_step["samples"].cumsum() if unit == "samples" else by_step.index.to_series() + 1
    has_loss = by_step["loss"].notna().to_numpy()
    return (
        reached.to_numpy(dtype=np.float64)[has_loss],
        by_step["loss"].to_numpy(dtype=np.float64)[has_loss],
    )


def compare_losses(
    plan: Plan,
    losses: Mapping[tuple[int, str], pd.DataFrame],
    *,
    scales: Mapping[str, float | None] | None = None,
) -> dict[str, LossEquality]:
    """Every arm's loss, the baseline's first; empty where none was seen.

    Args:
        plan: of the arms.
        losses: by launch and arm.
        scales: by arm, times how much its losses are comparable with the baseline's, where that is
            not 1; None: that is not known.
    """
    unit, scales = loss_unit(losses), scales or {}
    raw_curves = {
        place: curve for place, table in losses.items() if len((curve := curve_of(table, unit))[0])
    }
    curves = {place: (x, y * (scales.get(place[1]) or 1.0)) for place, (x, y) in raw_curves.items()}
    by_arm = {
        arm: {
            launch: curve
            for (launch, name), curve in sorted(curves.items(), key=lambda entry: entry[0])
            if name == arm
        }
        for arm in plan.compared_arms()
    }
    theirs = by_arm[plan.baseline]
    end = min((float(curve[0][-1]) for curve in curves.values()), default=0.0)
    equalities = {plan.baseline: _drawn(theirs, end)} if theirs else {}
    for arm, ours in by_arm.items():
        if arm != plan.baseline and ours:
            fields = (
                _compared(arm, plan, ours, theirs)
                if scales.get(arm, 1.0)
                else {"sentence": UNLIKE.format(arm, plan.baseline)}
            )
            equalities[arm] = _drawn(ours, end).model_copy(update=fields)
    return equalities


def _drawn(curves: Mapping[int, Curve], end: float) -> LossEquality:
    """The mean curve of the launches, at ``POINTS`` places up to where all arms came."""
    edges = np.linspace(0.0, end, min(POINTS, max(len(x) for x, _ in curves.values())) + 1)
    binned = [_binned(curve, edges) for curve in curves.values()]
    table = np.array(binned)
    is_known = np.isfinite(table)
    sums, counts = np.where(is_known, table, 0.0).sum(axis=0), is_known.sum(axis=0)
    means = [
        float(total / number) if number else None
        for total, number in zip(sums, counts, strict=True)
    ]
    return LossEquality(
        samples=[float(edge) for edge in edges[1:]],
        curve=means,
        launches=len(curves),
    )


def _binned(curve: Curve, edges: Array) -> list[float]:
    """The mean loss between neighbouring edges; NaN where there is none."""
    x, y = curve
    place = np.searchsorted(edges, x, side="left") - 1
    return [
        float(y[place == number].mean()) if (place == number).any() else math.nan
        for number in range(len(edges) - 1)
    ]


def _later_half(curve: Curve, end: float) -> float | None:
    """Mean loss over the later half up to ``end``; None without a step there."""
    x, y = curve
    inside = (x > end / 2) & (x <= end)
    return float(y[inside].mean()) if inside.any() else None


def _compared(
    arm: str, plan: Plan, ours: Mapping[int, Curve], theirs: Mapping[int, Curve]
) -> dict[str, object]:
    """Fields of ``LossEquality``: the difference to the baseline, and what it says."""
    margin = plan.scripts.loss_margin
    pairs = []
    for launch in ours:
        if launch in theirs:
            end = min(float(ours[launch][0][-1]), float(theirs[launch][0][-1]))
            pairs.append((_later_half(ours[launch], end), _later_half(theirs[launch], end)))
    finished = [(mine, its) for mine, its in pairs if mine is not None and its is not None]
    if not finished:
        return {
            "verdict": None,
            "sentence": f"The losses of {arm} and {plan.baseline} have no common stretch",
        }
    if any(not math.isfinite(mine) and math.isfinite(its) for mine, its in finished):
        return {
            "verdict": "worse",
            "launches": len(finished),
            "sentence": f"The loss of {arm} is not finite in the later half",
        }
    difference = loss_difference(finished)
    verdict = loss_verdict(difference, margin=margin)
    return {
        "difference": difference,
        "launches": len(finished),
        "verdict": verdict,
        "sentence": _sentence(arm, plan.baseline, difference, verdict, margin, len(finished)),
    }


def loss_difference(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    """How much higher the first of each pair is, as a share of the mean size of the second; one
    pair for each launch.
    """
    scale = float(np.mean([abs(its) for _, its in pairs]))
    if not scale or not math.isfinite(scale):
        return None
    return t_interval([(mine - its) / scale for mine, its in pairs], confidence=ONE_SIDED)


def loss_verdict(difference: Estimate | None, *, margin: float) -> LossVerdict:
    """No worse where the loss is surely less than ``margin`` higher, worse where it is surely more;
    each at 95%, one-sided.
    """
    if difference is None or difference.bounds is None:
        return "undecided"
    low, high = difference.bounds
    if high < margin:
        return "no worse"
    return "worse" if low > margin else "undecided"


def _sentence(
    arm: str,
    baseline: str,
    difference: Estimate | None,
    verdict: LossVerdict,
    margin: float,
    launches: int,
) -> str:
    if difference is None:
        return (
            f"The losses of {arm} and {baseline} cannot be compared: {baseline}'s is 0 or not"
            " finite"
        )
    size = (
        f"{abs(difference.value):.2%} {'higher' if difference.value >= 0 else 'lower'} over the"
        " later half"
    )
    is_equal = abs(difference.value) < EQUAL
    if difference.bounds is None:
        how = (
            f"equals {baseline}'s over the later half"
            if is_equal
            else f"is {size} than {baseline}'s"
        )
        return f"The loss of {arm} {how}, in one launch: no interval, so no verdict"
    size = "equal over the later half" if is_equal else size
    low, high = difference.bounds
    by = percent(margin)
    words = {
        "no worse": f"The loss of {arm} is no worse than {baseline}'s by a margin of {by}",
        "worse": f"The loss of {arm} is worse than {baseline}'s by more than {by}",
        "undecided": f"Whether the loss of {arm} is worse than {baseline}'s by {by} is undecided",
    }[verdict]
    return f"{words}: {size} ({low:+.2%} to {high:+.2%}, {launches} launches)"
