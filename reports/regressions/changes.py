"""What changed between two results: each arm's throughput and each ratio, unpaired, with what may be claimed of it.

A launch is the sample: Welch's interval of the difference of mean logarithms (``reports.statistics.separate``). All throughputs
hold at once, and so do all ratios. Launches of one result say nothing of how days differ: a machine that is slower today makes
all throughputs regress. Ratios are free of that, since both arms ran on the same day.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from measurement.plans.plan import Plan
from reports.against_schema import Change, ChangeVerdict, ChangeWithheld
from reports.conclusions.blocks import copies_of_baseline, log_levels, total_tables
from reports.conclusions.disturbances import is_quiet
from reports.conclusions.verdict import farthest, reach_of_load
from reports.estimate import Estimate
from reports.schema import ArmSummary, Comparison
from reports.statistics.intervals import RatioEstimate, launch_ratios
from reports.statistics.separate import Runs, separate_ratio
from reports.statistics.student import Array


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """How far off the two figures may be for a reason that their launches do not show, as logarithms."""

    by: ChangeWithheld
    before: float = math.inf
    """By how much the earlier figure may be too low."""
    after: float = math.inf


NO_DOUBT = Doubt(by="load", before=0.0, after=0.0)


def judge(change: RatioEstimate, *, allow_slower: float, doubt: Doubt = NO_DOUBT) -> tuple[ChangeVerdict, bool]:
    """The verdict, and whether it is a regression beyond what is allowed.

    Improved: the interval is above 1. No regression: the one-sided bound is at least 1 - ``allow_slower``. Regressed: neither, and
    the interval is below 1; beyond what is allowed where it is below 1 - ``allow_slower``.
    """
    if change.bounds is None or change.one_sided is None:
        return "undecided", False
    too_high, too_low = math.exp(-doubt.before), math.exp(doubt.after)
    low, least, high = change.bounds[0] * too_high, change.one_sided[0] * too_high, change.bounds[1] * too_low
    if low > 1:
        return "improved", False
    if least >= 1 - allow_slower:
        return "no regression", False
    return ("regressed", high < 1 - allow_slower) if high < 1 else ("undecided", False)


def find_changes(then: Comparison, now: Comparison, plans: tuple[Plan, Plan], *, allow_slower: float) -> list[Change]:
    """The changes of all figures that both results have: throughputs, then ratios.

    Args:
        then: the earlier result.
        now: the new one.
        plans: theirs.
        allow_slower: the share that a figure may lose.
    """
    cases = [case.name for case in now.cases] or [None]
    blocks = tuple({case: _blocks(one, case) for case in cases} for one in (then, now))
    confidence = plans[1].measurement.confidence
    arms = [arm for arm in now.arms if arm.role != "control" and _arm(then, arm.name)]
    throughputs = [_Figure.throughput(arm, then, case, blocks) for case in cases for arm in arms]
    names = [arm.name for arm in arms if arm.role == "candidate"]
    ratios = [_Figure.ratio(name, then, now, case, blocks, plans) for case in cases for name in names]
    return [
        change
        for figures in (throughputs, ratios)
        for figure in figures
        if (change := figure.change(confidence=confidence, family=len(figures), allow_slower=allow_slower))
    ]


Blocks = tuple[Mapping[str | None, pd.DataFrame], ...]
"""Of the earlier result and of the new one: blocks by case."""


@dataclass(frozen=True, kw_only=True)
class _Figure:
    """One figure in both results: a logarithm for each launch."""

    arm: str
    baseline: str | None
    case: str | None
    before: Array
    after: Array
    doubt: Doubt

    @classmethod
    def throughput(cls, arm: ArmSummary, then: Comparison, case: str | None, blocks: Blocks) -> _Figure:
        """Others' load makes an arm slower, so it may have been faster than it seems."""
        before, after = (_known(log_levels(tables[case], [arm.name])[:, 0]) for tables in blocks)
        reach = [_reach(one) for one in (then.arm(arm.name), arm)]
        doubt = Doubt(by="load", before=reach[0], after=reach[1])
        return cls(arm=arm.name, baseline=None, case=case, before=before, after=after, doubt=doubt)

    @classmethod
    def ratio(
        cls, name: str, then: Comparison, now: Comparison, case: str | None, blocks: Blocks, plans: tuple[Plan, Plan]
    ) -> _Figure:
        """What withholds a ratio's own verdict withholds that on its change; a control that deviates from 1 tells how far."""
        before, after = (_ratio_logs(plan, tables[case], name) for plan, tables in zip(plans, blocks, strict=True))
        doubt = next((found for one in (now, then) if (found := _ratio_doubt(one, name, case)).after), NO_DOUBT)
        return cls(arm=name, baseline=now.baseline, case=case, before=before, after=after, doubt=doubt)

    def change(self, *, confidence: float, family: int, allow_slower: float) -> Change | None:
        """None where one of the two has no timing."""
        ours, theirs = (Runs(logs=logs, usual=logs, started=()) for logs in (self.after, self.before))
        found = separate_ratio(ours, theirs, confidence=confidence, family=family)
        if found is None:
            return None
        verdict, is_beyond = judge(found, allow_slower=allow_slower, doubt=self.doubt)
        alone, _ = judge(found, allow_slower=allow_slower)
        withheld: ChangeWithheld | None = "launches" if found.bounds is None else self.doubt.by if verdict != alone else None
        return Change(
            arm=self.arm,
            baseline=self.baseline,
            case=self.case,
            before=float(np.exp(self.before.mean())),
            after=float(np.exp(self.after.mean())),
            change=Estimate(value=found.value, ci_low=found.ci_low, ci_high=found.ci_high),
            at_least=found.equivalence_low,
            launches_before=len(self.before),
            launches_after=len(self.after),
            verdict=verdict,
            is_beyond=is_beyond,
            withheld_by=withheld,
        )


def _blocks(comparison: Comparison, case: str | None) -> pd.DataFrame:
    found = pd.DataFrame(comparison.block_table)
    return found if case is None else found[found["case"] == case]


def _arm(comparison: Comparison, name: str) -> ArmSummary | None:
    return next((arm for arm in comparison.arms if arm.name == name), None)


def _known(logs: Array) -> Array:
    return logs[np.isfinite(logs)]


def _ratio_logs(plan: Plan, blocks: pd.DataFrame, name: str) -> Array:
    (table,) = total_tables(plan, blocks, [[name, *copies_of_baseline(plan, name)]])
    found = launch_ratios(table)
    return np.array([]) if found is None else found.logs


def _reach(arm: ArmSummary) -> float:
    """How much load may have slowed an arm, where the machine was not quiet."""
    load = arm.load
    return 0.0 if load is None or is_quiet(load) else reach_of_load(load.foreign_share + load.steal_share, None)


def _ratio_doubt(comparison: Comparison, name: str, case: str | None) -> Doubt:
    result = comparison.result(name, case)
    if result is None:
        return NO_DOUBT
    if result.withheld_by and result.withheld_by != "control":
        return Doubt(by=result.withheld_by)
    failed = next((one for one in _controls(comparison, case) if one.excludes(1.0)), None)
    return NO_DOUBT if failed is None else Doubt(by="control", before=farthest(failed), after=farthest(failed))


def _controls(comparison: Comparison, case: str | None) -> Iterator[Estimate]:
    for one in comparison.results:
        if one.role == "control" and one.case == case and one.throughput_ratio is not None:
            yield Estimate(value=one.throughput_ratio, ci_low=one.ci_low, ci_high=one.ci_high)
