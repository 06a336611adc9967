"""Ratios of runs that took no turns: each arm's runs are a sample of their own.

Welch's t interval on the difference of mean logarithms of total throughput (Biometrika 34, 1947),
with Satterthwaite's degrees of freedom: no variance is shared, since nothing says that two commands
started by hand vary alike. Where the runs of two arms alternated they are paired, neighbour with
neighbour, which takes a drift of the machine out: Student's t of the pairs' differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from reports.parts_schema import RunOrder
from reports.reasons import Caution
from reports.statistics.intervals import RatioEstimate, ratio_estimate
from reports.statistics.student import Array, both_sides, student_t


@dataclass(frozen=True, kw_only=True)
class Runs:
    """One arm's runs, in the order of their start."""

    logs: Array
    """float64 [runs]: ln of samples per second, over the whole run."""
    started: Sequence[str]
    """When each began: text that sorts as time does; empty where that is not known."""


def run_order(ours: Runs, theirs: Runs) -> RunOrder | None:
    """The order of the runs of two arms in time; None where one has none.

    ``alternating``: in pairs of neighbours, one of each arm, in whatever order within a pair. ``one
    after the other``: all of one arm before all of the other, so that a drift of the machine looks
    like a difference.
    """
    if not ours.started or not theirs.started:
        return None
    order = [
        which
        for _, which in sorted(
            [*((at, 0) for at in ours.started), *((at, 1) for at in theirs.started)]
        )
    ]
    are_pairs = len(ours.started) == len(theirs.started) and all(
        a != b for a, b in zip(order[::2], order[1::2], strict=True)
    )
    if are_pairs and len(ours.started) > 1:
        return "alternating"
    changes = sum(a != b for a, b in pairwise(order))
    return "one after the other" if changes == 1 else "mixed"


def separate_ratio(
    ours: Runs, theirs: Runs, *, confidence: float, family: int = 1
) -> RatioEstimate | None:
    """The ratio of two arms' throughput, geometric means over their runs, with its interval.

    ``confidence``: with which all of ``family`` intervals hold at once (Šidák).

    Returns:
        None where an arm has no run; no bounds where one has a single run: runs of a job differ by
        more than their blocks.
    """
    if not len(ours.logs) or not len(theirs.logs):
        return None
    paired = run_order(ours, theirs) == "alternating"
    runs = min(len(ours.logs), len(theirs.logs))
    half_widths = None
    if runs > 1:
        error, df, spread = _paired(ours, theirs) if paired else _welch(ours, theirs)
        each = confidence ** (1 / family)
        half_widths = (
            student_t(each, df) * error,
            student_t(both_sides(each), df) * error,
            student_t(confidence, df) * math.hypot(error, spread),
        )
    cautions: dict[int, Caution] = {1: "one run", 2: "two runs"}
    return ratio_estimate(
        float(ours.logs.mean() - theirs.logs.mean()),
        half_widths,
        launches=runs,
        pairs=runs if paired else 0,
        caution=cautions.get(runs),
    )


def _paired(ours: Runs, theirs: Runs) -> tuple[float, float, float]:
    """Standard error of the mean difference, degrees of freedom, and how much one pair's difference
    varies.
    """
    differences = ours.logs - theirs.logs
    spread = float(differences.std(ddof=1))
    return spread / len(differences) ** 0.5, len(differences) - 1.0, spread


def _welch(ours: Runs, theirs: Runs) -> tuple[float, float, float]:
    """Those figures of two samples."""
    variances = np.array([ours.logs.var(ddof=1), theirs.logs.var(ddof=1)])
    numbers = np.array([len(ours.logs), len(theirs.logs)])
    parts = variances / numbers
    if not parts.sum():
        return 0.0, float((numbers - 1).min()), 0.0
    df = parts.sum() ** 2 / (parts**2 / (numbers - 1)).sum()
    return float(parts.sum() ** 0.5), float(df), float(variances.sum() ** 0.5)
