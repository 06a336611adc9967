"""Results of one plan over time: each figure at each date, where its level changes, and what else changed on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from measurement.conditions.same_environment import told
from measurement.errors import PlanError
from reports.estimate import Estimate
from reports.regressions.measured import Measured, unlike_environments, unlike_plans
from reports.schema import Comparison
from reports.statistics.change_points import change_points
from reports.wording.formatting import apart


@dataclass(frozen=True, kw_only=True)
class Dated:
    """One result."""

    measured: Measured
    found: Comparison

    @property
    def date(self) -> str:
        """When it was measured, to the minute."""
        return self.found.created_at[:16].replace("T", " ")


@dataclass(frozen=True, kw_only=True)
class ChangePoint:
    """From this result on a figure has another level."""

    figure: str
    at: int
    change: float
    """The level until the next change over that since the one before."""

    @property
    def words(self) -> str:
        """Such as ``ddp 5.2% slower``."""
        return f"{self.figure} {apart(self.change)} {'slower' if self.change < 1 else 'faster'}"


@dataclass(frozen=True, kw_only=True)
class History:
    """One plan's results, the earliest first."""

    results: Sequence[Dated]
    arms: dict[str, list[Estimate | None]]
    """Throughput of each arm, by result; None: no timing."""
    ratios: dict[str, list[Estimate | None]]
    """Ratio of each candidate to the baseline."""
    change_points: Sequence[ChangePoint]
    environments: Sequence[str]
    """What else changed from the result before: machine, versions, sources; empty where nothing did."""

    @property
    def last(self) -> Comparison:
        """What the newest result says."""
        return self.results[-1].found

    def marks(self, at: int) -> list[str]:
        """The levels that change with this result."""
        return [one.words for one in self.change_points if one.at == at]


def history_of(results: Sequence[Dated]) -> History:
    """Put results of one plan in order.

    Raises:
        PlanError: they are fewer than two, of several plans, or of a micro-benchmark.
    """
    ordered = sorted(results, key=lambda one: one.found.created_at)
    if len(ordered) < 2:
        raise PlanError(f"a history has two results at least, and there is {len(ordered)}; name more folders of 'ringside compare'")
    if ordered[-1].found.cases:
        raise PlanError(
            f"'{ordered[-1].found.workload}' is a micro-benchmark of many cases; compare two of its results: "
            "ringside report NEW --against OLD"
        )
    _require_one_plan(ordered)
    last = ordered[-1].found
    names = [arm.name for arm in last.arms if arm.role != "control"]
    arms = {name: [_throughput(one.found, name) for one in ordered] for name in names}
    ratios = {f"{name} over {last.baseline}": [_ratio(one.found, name) for one in ordered] for name in names if name != last.baseline}
    confidence = ordered[-1].measured.plan.measurement.confidence ** (1 / (len(arms) + len(ratios)))
    least = ordered[-1].measured.plan.measurement.noise_threshold
    points = [point for name, series in (arms | ratios).items() for point in _points(name, series, confidence, least)]
    environments = ["", *("; ".join(told(unlike_environments(a.measured, b.measured))) for a, b in pairwise(ordered))]
    return History(results=ordered, arms=arms, ratios=ratios, change_points=points, environments=environments)


def _require_one_plan(results: Sequence[Dated]) -> None:
    last = results[-1].measured
    for one in results[:-1]:
        unlike = told(unlike_plans(one.measured, last))
        if unlike:
            raise PlanError(
                f"'{one.measured.folder.root}' is of another plan than '{last.folder.root}' ({'; '.join(unlike)}); a history is of "
                "one plan: leave one of them out"
            )


def _throughput(found: Comparison, arm: str) -> Estimate | None:
    return next((one.throughput_per_s for one in found.arms if one.name == arm), None)


def _ratio(found: Comparison, arm: str) -> Estimate | None:
    result = found.result(arm)
    if result is None or result.throughput_ratio is None:
        return None
    return Estimate(value=result.throughput_ratio, ci_low=result.ci_low, ci_high=result.ci_high)


def _points(figure: str, series: Sequence[Estimate | None], confidence: float, least: float) -> list[ChangePoint]:
    """Changes of a figure's level, but for those of no practical interest."""
    known = [(index, math.log(one.value)) for index, one in enumerate(series) if one is not None]
    logs = np.array([log for _, log in known])
    ends = [0, *change_points(logs, confidence=confidence), len(logs)]
    found = []
    for start, place, end in zip(ends, ends[1:], ends[2:], strict=False):
        change = math.exp(logs[place:end].mean() - logs[start:place].mean())
        if abs(change - 1) >= least:
            found.append(ChangePoint(figure=figure, at=known[place][0], change=change))
    return found
