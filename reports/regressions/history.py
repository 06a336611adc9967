"""Results of one plan over time: each figure at each date, where its level changes, and what else changed on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from measurement.conditions.same_environment import told
from measurement.errors import PlanError
from reports.estimate import Estimate
from reports.regressions.measured import Dated, unlike_environments, unlike_plans
from reports.schema import Comparison
from reports.statistics.change_points import change_points
from reports.wording.formatting import apart

OVER = " over "
"""Stands in the name of a ratio, between its arms."""
Series = list[Estimate | None]
"""A figure by result; None: no timing."""


@dataclass(frozen=True, kw_only=True)
class History:
    """One plan's results, the earliest first."""

    results: Sequence[Dated]
    figures: dict[str, Series]
    """Throughput of each arm by its name; ratio of each candidate."""
    levels: Sequence[dict[str, str]]
    """By result, the figures whose level changes with it, and by how much in words."""
    environments: Sequence[str]
    """By result, what else changed: machine, versions, sources."""

    @property
    def last(self) -> Dated:
        """The newest result."""
        return self.results[-1]

    @property
    def dates(self) -> list[str]:
        """When each was measured, to the minute."""
        return [one.found.created_at[:16].replace("T", " ") for one in self.results]


def history_of(results: Sequence[Dated]) -> History:
    """Put results of one plan in order.

    Raises:
        PlanError: they are fewer than two, of several plans, or of a micro-benchmark.
    """
    ordered = sorted(results, key=lambda one: one.found.created_at)
    if len(ordered) < 2:
        raise PlanError(f"a history has two results at least, and there is {len(ordered)}; name more folders of 'ringside compare'")
    last, measure = ordered[-1], ordered[-1].measured.plan.measurement
    if last.found.cases:
        raise PlanError(f"'{last.found.workload}' is a micro-benchmark of many cases; use 'ringside report NEW --against OLD'")
    for one in ordered[:-1]:
        if unlike := told(unlike_plans(one.measured, last.measured)):
            raise PlanError(
                f"'{one.measured.folder.root}' is of another plan than '{last.measured.folder.root}' ({'; '.join(unlike)}); leave "
                "one of them out: a history is of one plan"
            )
    names = [arm.name for arm in last.found.arms if arm.role != "control"]
    names += [f"{name}{OVER}{last.found.baseline}" for name in names if name != last.found.baseline]
    figures = {name: [_figure(one.found, name) for one in ordered] for name in names}
    levels: list[dict[str, str]] = [{} for _ in ordered]
    for name, series in figures.items():
        for at, change in _changes(series, confidence=measure.confidence ** (1 / len(figures))):
            if abs(change - 1) >= measure.noise_threshold:
                levels[at][name] = f"{name} {apart(change)} {'slower' if change < 1 else 'faster'}"
    environments = ["", *("; ".join(told(unlike_environments(a.measured, b.measured))) for a, b in pairwise(ordered))]
    return History(results=ordered, figures=figures, levels=levels, environments=environments)


def _figure(found: Comparison, name: str) -> Estimate | None:
    arm, _, baseline = name.partition(OVER)
    if not baseline:
        return next((one.throughput_per_s for one in found.arms if one.name == arm), None)
    result = found.result(arm)
    return result.ratio if result else None


def _changes(series: Series, *, confidence: float) -> Iterator[tuple[int, float]]:
    """Each result with which another level begins, and that level over the one before."""
    known = [(index, math.log(one.value)) for index, one in enumerate(series) if one is not None]
    logs = np.array([log for _, log in known])
    ends = [0, *change_points(logs, confidence=confidence), len(logs)]
    for start, place, end in zip(ends, ends[1:], ends[2:], strict=False):
        yield known[place][0], math.exp(logs[place:end].mean() - logs[start:place].mean())
