"""The ratio of every arm to the baseline, with its interval and what may be claimed from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from measurement.plan import Plan
from measurement.record import LaunchRecord
from reports.conclusions.blocks import PAIR_COLUMNS, columns, copies_of_baseline, pair_blocks, total_tables, with_copies
from reports.conclusions.cases import cases_of
from reports.conclusions.load import is_quiet, summarise_load, undisturbed
from reports.conclusions.stalls import FEW, without_stalls
from reports.conclusions.verdict import decide, minutes_to_decide
from reports.schema import ArmSummary, RatioSummary, Withheld
from reports.statistics.intervals import Interval, Launches, launch_ratios, ratio_intervals, typical_ratio


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What ratios are concluded from."""

    plan: Plan
    records: Sequence[LaunchRecord]
    blocks: pd.DataFrame
    """Of all arms (``reports.conclusions.blocks.tabulate_blocks``)."""
    stalls: pd.DataFrame
    """``reports.conclusions.stalls.find_stalls``."""
    loads: pd.DataFrame
    """``reports.conclusions.load.block_loads``."""
    arms: Mapping[str, ArmSummary]
    minutes: float
    """Of measuring so far."""
    error_share: float = 1.0
    """That this look may spend (``reports.statistics.looks``)."""

    @property
    def threshold(self) -> float:
        """A ratio within this of 1 is of no practical interest."""
        return self.plan.measurement.noise_threshold

    @property
    def others(self) -> list[str]:
        """All arms but the baseline, the candidates first."""
        names = [name for name in self.plan.all_arms() if name != self.plan.baseline]
        return sorted(names, key=lambda name: self.plan.role(name) == "control")

    def tables(self, blocks: pd.DataFrame) -> dict[str, Launches]:
        """What the ratios of ``others`` are made of in these blocks, which are of one case where there are several."""
        found = total_tables(self.plan, blocks, [with_copies(self.plan, name) for name in self.others])
        return dict(zip(self.others, found, strict=True))

    def intervals(self, tables: Mapping[str, Launches]) -> dict[str, Interval | None]:
        """The ratios of ``others``."""
        names = self.others
        found = ratio_intervals(
            [tables[name] for name in names],
            confidence=self.plan.measurement.confidence,
            scales=[1 + 1 / len(copies_of_baseline(self.plan, name)) for name in names],
            family=sum(self.plan.role(name) == "candidate" for name in names),
            error_share=self.error_share,
        )
        return dict(zip(names, found, strict=True))


def summarise_ratios(evidence: Evidence) -> list[RatioSummary]:
    """The ratio of every other arm to the baseline, in every case, the control first; without figures where there is no timing."""
    cases: list[str | None] = [case.name for case in cases_of(evidence.records)]
    return [result for case in cases or [None] for result in _ratios_of_case(evidence, case)]


def _ratios_of_case(evidence: Evidence, case: str | None) -> list[RatioSummary]:
    """The ratios of one case, or of a workload that is trained (``case`` is None)."""
    plan = evidence.plan
    blocks = evidence.blocks if case is None else evidence.blocks[evidence.blocks["case"] == case]
    tables = evidence.tables(blocks)
    calm = None if case else evidence.tables(without_stalls(blocks, evidence.stalls))
    intervals = evidence.intervals(tables)
    control = next((intervals[name] for name in intervals if plan.role(name) == "control"), None)
    quiet = (
        None
        if is_quiet(summarise_load(evidence.loads))
        else evidence.intervals(evidence.tables(undisturbed(blocks, evidence.loads)))
    )
    found = {}
    for name, interval in intervals.items():
        result = _without_verdict(evidence, name, case, blocks, interval)
        result.typical_ratio = typical_ratio(tables[name])
        if calm is not None:
            result.ratio_without_stalls = _ratio(calm[name])
        if quiet is not None:
            others = quiet[name]
            result.quiet_ratio = others.estimate if others else None
        _judge(evidence, result, interval, control, quiet)
        found[name] = result
    return [found[name] for name in plan.all_arms() if name in found]


def _without_verdict(
    evidence: Evidence, name: str, case: str | None, blocks: pd.DataFrame, interval: Interval | None
) -> RatioSummary:
    plan = evidence.plan
    return RatioSummary(
        baseline=plan.baseline,
        candidate=name,
        case=case,
        role="control" if plan.role(name) == "control" else "candidate",
        world_size=plan.world_size,
        hosts=next((record.hosts for record in evidence.records if record.arm == name), []),
        confidence=plan.measurement.confidence,
        **_bounds(interval),
        pair_table=columns(_marked(evidence, pair_blocks(plan, blocks, name), name), [*PAIR_COLUMNS, "disturbed"]),
        verdict="undecided",
        verdict_alone="undecided",
    )


def _marked(evidence: Evidence, pairs: pd.DataFrame, name: str) -> pd.DataFrame:
    """Pairs with ``disturbed``: whether others disturbed one of the arms in that round."""
    arms = with_copies(evidence.plan, name)
    hit = evidence.loads[evidence.loads["disturbed"] & evidence.loads["arm"].isin(arms)]
    rounds = set(zip(hit["launch"], hit["round"], strict=True))
    return pairs.assign(disturbed=[place in rounds for place in zip(pairs["launch"], pairs["round"], strict=True)])


def _bounds(interval: Interval | None) -> dict[str, Any]:
    """The fields of ``RatioSummary`` that come from the interval."""
    if interval is None:
        return {"throughput_ratio": None, "ci_low": None, "ci_high": None, "launches": 0, "pairs": 0}
    return {
        "throughput_ratio": interval.estimate,
        "ci_low": interval.low,
        "ci_high": interval.high,
        "run_low": interval.run_low,
        "run_high": interval.run_high,
        "caution": interval.caution,
        "launches": interval.launches,
        "pairs": interval.pairs,
    }


def _ratio(launches: Launches) -> float | None:
    """The ratio of totals alone."""
    found = launch_ratios(launches)
    return float(np.exp(found.logs.mean())) if found else None


def _judge(
    evidence: Evidence,
    result: RatioSummary,
    interval: Interval | None,
    control: Interval | None,
    quiet: Mapping[str, Interval | None] | None,
) -> None:
    """Set the verdict, or what withholds it."""
    threshold = evidence.threshold
    alone = result.verdict_alone = decide(interval, threshold=threshold)
    withheld: Withheld | None = None
    if alone != "undecided" and interval is not None:
        if result.role == "candidate" and decide(interval, threshold=threshold, control=control) != alone:
            withheld = "control"
        elif _hangs_on_few_stalls(evidence, result, interval):
            withheld = "stalls"
        elif quiet is not None and decide(quiet[result.candidate], threshold=threshold) != alone:
            withheld = "load"
    result.withheld_by = withheld
    result.verdict = "undecided" if withheld else alone
    if alone == "undecided":
        result.more_minutes = minutes_to_decide(interval, threshold=threshold, measured_minutes=evidence.minutes)


def _hangs_on_few_stalls(evidence: Evidence, result: RatioSummary, interval: Interval) -> bool:
    """Whether the verdict would be another without stalls that are too few to tell how often they come."""
    ours, theirs = evidence.arms[result.candidate].stalls, evidence.arms[result.baseline].stalls
    if result.ratio_without_stalls is None or not ours or not theirs:
        return False
    worse = max(ours, theirs, key=lambda stalls: stalls.share)
    if not 0 < worse.count < FEW:
        return False
    calm = interval.times(result.ratio_without_stalls / interval.estimate)
    return decide(calm, threshold=evidence.threshold) != result.verdict_alone


def fastest(evidence: Evidence, results: Sequence[RatioSummary]) -> list[str]:
    """The arms than which none is shown to be faster: one, or several that are tied.

    None without a ratio, and of a micro-benchmark. The fastest by its estimate is held against every other arm at once, as in Hsu's
    multiple comparisons with the best (Annals of Statistics 9, 1981): against the baseline by its verdict, against candidates by
    their own blocks of the same rounds.
    """
    timed = {result.candidate: result for result in results if result.role == "candidate" and result.throughput_ratio is not None}
    if not timed or cases_of(evidence.records):
        return []
    best = max(timed, key=lambda name: timed[name].throughput_ratio or 0.0)
    plan = evidence.plan
    if (timed[best].throughput_ratio or 0.0) < 1.0:
        return [plan.baseline, *(name for name in timed if timed[name].verdict != "slower")]
    others = [name for name in timed if name != best]
    intervals = ratio_intervals(
        total_tables(plan, evidence.blocks, [[best, name] for name in others]),
        confidence=plan.measurement.confidence,
        family=len(others),
        error_share=evidence.error_share,
    )
    tied = [name for name, one in zip(others, intervals, strict=True) if decide(one, threshold=evidence.threshold) != "faster"]
    return [best, *([] if timed[best].verdict == "faster" else [plan.baseline]), *tied]
