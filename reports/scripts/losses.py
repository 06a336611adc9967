"""The losses of scripts: a curve for each arm, and whether an arm's is no worse than the baseline's
by a margin.

A loss is the scalar that ``backward()`` was called on: the mean over ranks and passes, against the
samples of all ranks since the script's start. Where a script was restarted in a launch, its first
start counts. Of each launch the means over the later half of what both arms reached are compared
with each other, since arms of a launch share a seed where they take one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd

from measurement.plans.plan import Plan
from reports.parts_schema import Estimate, LossEquality, LossVerdict
from reports.statistics.student import t_interval
from reports.wording.formatting import percent

ONE_SIDED = 0.90
"""Confidence of the two-sided interval whose bounds hold at 95% each."""
POINTS = 100
"""Places at which a curve is drawn."""


def loss_unit(losses: Mapping[tuple[int, str], pd.DataFrame]) -> Literal["samples", "steps"]:
    """The unit of the x axis: steps where some arm's samples could not be counted."""
    return (
        "samples"
        if all(int(table["samples"].min()) > 0 for table in losses.values() if len(table))
        else "steps"
    )


def curve_of(table: pd.DataFrame, unit: Literal["samples", "steps"]) -> pd.Series:
    """The loss of one launch of one arm, mean over ranks, by samples or steps since the start;
    steps without a loss are left out.
    """
    first = table[table["start"] == 0]
    by_step = (
        first.groupby("step").agg(samples=("samples", "sum"), loss=("loss", "mean")).sort_index()
    )
    reached = by_step["samples"].cumsum() if unit == "samples" else by_step.index + 1
    return by_step["loss"].set_axis(reached).dropna()


def compare_losses(
    plan: Plan,
    losses: Mapping[tuple[int, str], pd.DataFrame],
    *,
    in_other_passes: Collection[str] = (),
) -> dict[str, LossEquality]:
    """Every arm's loss, the baseline's first; empty where none was seen.

    Args:
        plan: of the arms.
        losses: by launch and arm.
        in_other_passes: arms whose step has another number of backward passes than the baseline's.
    """
    unit = loss_unit(losses)
    by_arm: dict[str, dict[int, pd.Series]] = {}
    for (launch, arm), table in losses.items():
        if len(curve := curve_of(table, unit)):
            by_arm.setdefault(arm, {})[launch] = curve
    ends = [float(curve.index[-1]) for curves in by_arm.values() for curve in curves.values()]
    equalities = {}
    for arm in sorted(plan.compared_arms(), key=lambda arm: arm != plan.baseline):
        if arm not in by_arm:
            continue
        fields: dict[str, object] = {}
        if arm in in_other_passes:
            fields["sentence"] = (
                f"The losses of {arm} and {plan.baseline} are not compared: a step has another"
                " number of backward passes"
            )
        elif arm != plan.baseline:
            fields = _compared(arm, plan, by_arm[arm], by_arm.get(plan.baseline, {}))
        equalities[arm] = _drawn(by_arm[arm], min(ends)).model_copy(update=fields)
    return equalities


def _drawn(curves: Mapping[int, pd.Series], end: float) -> LossEquality:
    """The mean curve of the launches, at ``POINTS`` places up to where all arms came."""
    edges = np.linspace(0.0, end, min(POINTS, max(map(len, curves.values()))) + 1).tolist()
    binned = [
        curve.groupby(pd.cut(curve.index.to_series(), edges), observed=False).mean()
        for curve in curves.values()
    ]
    means = pd.concat(binned, axis=1).replace([math.inf, -math.inf], math.nan).mean(axis=1)
    return LossEquality(
        samples=edges[1:],
        curve=[None if math.isnan(mean) else mean for mean in means],
        launches=len(curves),
    )


def _compared(
    arm: str, plan: Plan, ours: Mapping[int, pd.Series], theirs: Mapping[int, pd.Series]
) -> dict[str, object]:
    """Fields of ``LossEquality``: the difference to the baseline, and what it says."""
    pairs = []
    for launch in sorted(ours.keys() & theirs.keys()):
        both = (ours[launch], theirs[launch])
        end = min(curve.index[-1] for curve in both)
        halves = [curve[(curve.index > end / 2) & (curve.index <= end)] for curve in both]
        if all(map(len, halves)):
            pairs.append((float(halves[0].mean()), float(halves[1].mean())))
    baseline, margin = plan.baseline, plan.scripts.loss_margin
    fields: dict[str, object] = {"launches": len(pairs)}
    if any(not math.isfinite(mine) and math.isfinite(its) for mine, its in pairs):
        sentence = f"The loss of {arm} is not finite in the later half"
        return fields | {"verdict": "worse", "sentence": sentence}
    difference = loss_difference(pairs)
    if difference is None:
        return fields | {"sentence": f"The losses of {arm} and {baseline} cannot be compared"}
    verdict = loss_verdict(difference, margin=margin)
    size = f"{difference.value:+.2%} over the later half"
    if difference.bounds is None:
        sentence = (
            f"The loss of {arm} differs from {baseline}'s by {size}, in one launch: no interval, so"
            " no verdict"
        )
    else:
        low, high = difference.bounds
        loss, by = f"the loss of {arm}", percent(margin)
        words = {
            "no worse": f"The loss of {arm} is no worse than {baseline}'s by a margin of {by}",
            "worse": f"The loss of {arm} is worse than {baseline}'s by more than {by}",
            "undecided": f"Whether {loss} is worse than {baseline}'s by {by} is undecided",
        }[verdict]
        sentence = f"{words}: {size} ({low:+.2%} to {high:+.2%}, {len(pairs)} launches)"
    return fields | {"difference": difference, "verdict": verdict, "sentence": sentence}


def loss_difference(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    """How much higher the first of each pair is, as a share of the mean size of the second; one
    pair for each launch. None where that is 0 or not finite.
    """
    scale = float(np.mean([abs(its) for _, its in pairs])) if pairs else 0.0
    if not scale or not math.isfinite(scale):
        return None
    return t_interval([(mine - its) / scale for mine, its in pairs], confidence=ONE_SIDED)


def loss_verdict(difference: Estimate, *, margin: float) -> LossVerdict:
    """No worse where the loss is surely less than ``margin`` higher, worse where it is surely more;
    each at 95%, one-sided.
    """
    if difference.bounds is None:
        return "undecided"
    low, high = difference.bounds
    if high < margin:
        return "no worse"
    return "worse" if low > margin else "undecided"
