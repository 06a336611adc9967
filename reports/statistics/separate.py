"""Ratios of runs that took no turns: each arm's runs are a sample of their own.

Welch's t interval on the difference of mean logarithms of total throughput (Biometrika 34, 1947),
with Satterthwaite's degrees of freedom: no variance is shared, since nothing says that two commands
started by hand vary alike. Where the runs of two arms alternated they are paired, neighbour with
neighbour, which takes a drift of the machine out: Student's t of the pairs' differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from reports.estimate import RunOrder
from reports.reasons import Caution
from reports.statistics.intervals import HalfWidths, RatioEstimate, ratio_estimate, trimmed_mean
from reports.statistics.student import Array, both_sides, student_t


@dataclass(frozen=True, kw_only=True)
class Runs:
    """One arm's runs, in the order of their start."""

    logs: Array
    """float64 [runs]: ln of samples per second, over the whole run."""
    usual: Array
    """Those of its usual blocks: as many are left out at either end as in ``typical_ratio``."""
    started: Sequence[str]
    """When each began: text that sorts as time does; empty where that is not known."""


def runs_of(started: Sequence[str], blocks: Sequence[Array]) -> Runs:
    """Make an arm's runs. ``blocks``: of each, float64 [blocks, 2], samples and seconds."""
    totals = [table.sum(axis=0) for table in blocks]
    usual = [trimmed_mean(np.log(table[:, 0] / table[:, 1])) for table in blocks]
    return Runs(
        logs=np.log([samples / seconds for samples, seconds in totals]),
        usual=np.array([np.nan if mean is None else mean for mean in usual]),
        started=started,
    )


def ratio_of_runs(ours: Runs, theirs: Runs, *, usual_blocks: bool = False) -> float | None:
    """The ratio of geometric means over runs, or over their usual blocks; None where an arm has no
    run.
    """
    mine, its = (runs.usual if usual_blocks else runs.logs for runs in (ours, theirs))
    return float(np.exp(mine.mean() - its.mean())) if len(mine) and len(its) else None


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
    centre = float(ours.logs.mean() - theirs.logs.mean())
    error, df, spread = _paired(ours, theirs) if paired else _welch(ours, theirs)
    half = HalfWidths()
    if df > 0:
        each = confidence ** (1 / family)
        half = HalfWidths(
            interval=student_t(each, df) * error,
            equivalence=student_t(both_sides(each), df) * error,
            run=student_t(confidence, df) * float(np.hypot(error, spread)),
        )
    runs = min(len(ours.logs), len(theirs.logs))
    cautions: dict[int, Caution] = {1: "one run", 2: "two runs"}
    return ratio_estimate(
        centre, half, launches=runs, pairs=runs if paired else 0, caution=cautions.get(runs)
    )


def _paired(ours: Runs, theirs: Runs) -> tuple[float, float, float]:
    """Standard error of the mean difference, degrees of freedom, and how much one pair's difference
    varies.
    """
    differences = ours.logs - theirs.logs
    spread = float(differences.std(ddof=1))
    return spread / len(differences) ** 0.5, len(differences) - 1.0, spread


def _welch(ours: Runs, theirs: Runs) -> tuple[float, float, float]:
    """Those figures of two samples; no degrees of freedom where one is a single run."""
    if min(len(ours.logs), len(theirs.logs)) < 2:
        return 0.0, 0.0, 0.0
    variances = np.array([ours.logs.var(ddof=1), theirs.logs.var(ddof=1)])
    numbers = np.array([len(ours.logs), len(theirs.logs)])
    parts = variances / numbers
    if not parts.sum():
        return 0.0, float((numbers - 1).min()), 0.0
    df = parts.sum() ** 2 / (parts**2 / (numbers - 1)).sum()
    return float(parts.sum() ** 0.5), float(df), float(variances.sum() ** 0.5)
