"""The ratio of every arm to the baseline, with its interval and what may be claimed from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from measurement.plan import Plan
from measurement.record import LaunchRecord
from reports.conclusions.blocks import PAIR_COLUMNS, columns, pair_blocks, total_tables, with_copies
from reports.conclusions.cases import cases_of
from reports.conclusions.load import is_quiet, summarise_load, undisturbed
from reports.conclusions.stalls import FEW, without_stalls
from reports.conclusions.verdict import decide, to_decide
from reports.schema import ArmSummary, RatioSummary, RunOrder, Withheld
from reports.statistics.intervals import Array, Interval, ratio_intervals, typical_ratio
from reports.statistics.separate import Runs, run_order, separate_ratio, total_rate, typical_rate


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

    def intervals(self, blocks: pd.DataFrame) -> dict[str, Interval | None]:
        """The ratios of ``others`` in these blocks, which are of one case where there are several."""
        names = self.others
        found = self.ratios(
            blocks,
            [with_copies(self.plan, name) for name in names],
            family=sum(self.plan.role(name) == "candidate" for name in names),
        )
        return dict(zip(names, found, strict=True))

    def ratios(self, blocks: pd.DataFrame, groups: Sequence[Sequence[str]], *, family: int) -> list[Interval | None]:
        """The ratio of the first arm of each group to the others, which are copies of one arm.

        Args:
            blocks: of one case, where there are several.
            groups: of arms.
            family: how many of them claim something; these come first.
        """
        confidence = self.plan.measurement.confidence
        if self.plan.measurement.mode == "separate":
            runs = self.runs(blocks)
            return [separate_ratio(runs[ours], runs[theirs], confidence=confidence, family=family) for ours, theirs in groups]
        return ratio_intervals(
            total_tables(self.plan, blocks, groups),
            confidence=confidence,
            scales=[1 + 1 / (len(group) - 1) for group in groups],
            family=family,
            error_share=self.error_share,
        )

    def typical(self, blocks: pd.DataFrame) -> dict[str, float | None]:
        """The ratios of ``others`` in a usual block."""
        if self.plan.measurement.mode == "separate":
            runs = self.runs(blocks, of=typical_rate)
            found = [separate_ratio(runs[name], runs[self.plan.baseline], confidence=0.5) for name in self.others]
            return {name: one.estimate if one else None for name, one in zip(self.others, found, strict=True)}
        tables = total_tables(self.plan, blocks, [with_copies(self.plan, name) for name in self.others])
        return {name: typical_ratio(table) for name, table in zip(self.others, tables, strict=True)}

    def runs(self, blocks: pd.DataFrame, *, of: Callable[[Array], float] = total_rate) -> dict[str, Runs]:
        """Every arm's runs in the order of their start, where people started them themselves.

        Args:
            blocks: of one case, where there are several.
            of: takes a run's rate from its blocks.
        """
        started = {(record.arm, record.launch): record.started_at for record in self.records}
        sync = blocks[blocks["kind"] == "sync"]
        found = {}
        for arm in self.plan.all_arms():
            own = sync[sync["arm"] == arm].groupby("launch")[["samples", "block_s"]]
            rates = sorted((started[arm, int(str(launch))], of(table.to_numpy(dtype=np.float64))) for launch, table in own)
            found[arm] = Runs(logs=np.log([rate for _, rate in rates]), started=[at for at, _ in rates])
        return found


def summarise_ratios(evidence: Evidence) -> list[RatioSummary]:
    """The ratio of every other arm to the baseline, in every case, the control first; without figures where there is no timing."""
    cases: list[str | None] = [case.name for case in cases_of(evidence.records)]
    return [result for case in cases or [None] for result in _ratios_of_case(evidence, case)]


def _ratios_of_case(evidence: Evidence, case: str | None) -> list[RatioSummary]:
    """The ratios of one case, or of a workload that is trained (``case`` is None)."""
    plan = evidence.plan
    blocks = evidence.blocks if case is None else evidence.blocks[evidence.blocks["case"] == case]
    intervals, typical = evidence.intervals(blocks), evidence.typical(blocks)
    calm = None if case else evidence.intervals(without_stalls(blocks, evidence.stalls))
    control = next((intervals[name] for name in intervals if plan.role(name) == "control"), None)
    quiet = None if is_quiet(summarise_load(evidence.loads)) else evidence.intervals(undisturbed(blocks, evidence.loads))
    found = {}
    for name, interval in intervals.items():
        result = _without_verdict(evidence, name, case, blocks, interval)
        result.typical_ratio = typical[name]
        result.ratio_without_stalls = _estimate(calm[name]) if calm is not None else None
        result.quiet_ratio = _estimate(quiet[name]) if quiet is not None else None
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
        run_order=_run_order(evidence, name, blocks),
        confidence=plan.measurement.confidence,
        **_bounds(interval),
        pair_table=columns(_marked(evidence, pair_blocks(plan, blocks, name), name), [*PAIR_COLUMNS, "disturbed"]),
        verdict="undecided",
        verdict_alone="undecided",
    )


def _run_order(evidence: Evidence, name: str, blocks: pd.DataFrame) -> RunOrder | None:
    if evidence.plan.measurement.mode != "separate":
        return None
    runs = evidence.runs(blocks)
    return run_order(runs[name], runs[evidence.plan.baseline])


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


def _estimate(interval: Interval | None) -> float | None:
    """The ratio alone."""
    return interval.estimate if interval else None


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
        if evidence.plan.measurement.mode == "separate":
            more = to_decide(interval, threshold=threshold, measured=result.launches)
            result.more_runs = None if more is None else math.ceil(more)
        else:
            result.more_minutes = to_decide(interval, threshold=threshold, measured=evidence.minutes)


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
    intervals = evidence.ratios(evidence.blocks, [[best, name] for name in others], family=len(others))
    tied = [name for name, one in zip(others, intervals, strict=True) if decide(one, threshold=evidence.threshold) != "faster"]
    return [best, *([] if timed[best].verdict == "faster" else [plan.baseline]), *tied]
