"""The ratio of every arm to the baseline, with its interval and what may be claimed from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd

from measurement.plans.plan import Plan
from measurement.records.record import LaunchRecord
from reports.conclusions.blocks import PAIR_COLUMNS, columns, copies_of_baseline, pair_blocks, total_tables, with_copies
from reports.conclusions.cases import cases_of
from reports.conclusions.disturbances import FEW, is_quiet, summarise_load, undisturbed, without_stalls
from reports.conclusions.step_terms import Terms
from reports.conclusions.verdict import decide, reach_of_load, stands_clear, tells_nothing, to_decide
from reports.schema import ArmSummary, RatioSummary, Withheld
from reports.statistics.intervals import Interval, Launches, launch_ratios, ratio_intervals, typical_ratio
from reports.statistics.separate import Runs, ratio_of_runs, ratio_of_usual_blocks, run_order, runs_of, separate_ratio

Sample = Launches | tuple[Runs, Runs]
"""What one ratio is made of: blocks of rounds, or the runs of two arms that took no turns."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What ratios are concluded from."""

    plan: Plan
    records: Sequence[LaunchRecord]
    blocks: pd.DataFrame
    """Of all arms (``reports.conclusions.blocks.tabulate_blocks``)."""
    stalls: pd.DataFrame
    """``reports.conclusions.disturbances.find_stalls``."""
    loads: pd.DataFrame
    """``reports.conclusions.disturbances.block_loads``."""
    arms: Mapping[str, ArmSummary]
    terms: Terms
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
        names = [name for name in self.plan.compared_arms() if name != self.plan.baseline]
        return sorted(names, key=lambda name: self.plan.role(name) == "control")

    @property
    def are_runs(self) -> bool:
        """Whether people started the runs themselves, so that arms took no turns."""
        return self.plan.measurement.mode == "separate"

    def samples(self, blocks: pd.DataFrame, groups: Sequence[Sequence[str]]) -> list[Sample]:
        """What ratios are made of in these blocks, which are of one case where there are several.

        Args:
            blocks: as of ``tabulate_blocks``.
            groups: per ratio the arm, then those that it is held against, which are copies of one arm.
        """
        if not self.are_runs:
            return list(total_tables(self.plan, blocks, groups))
        runs = self._runs(blocks)
        return [(runs[ours], runs[theirs]) for ours, theirs in groups]

    def samples_of_others(self, blocks: pd.DataFrame) -> dict[str, Sample]:
        """Those of ``others``, each against the copies of the baseline."""
        found = self.samples(blocks, [with_copies(self.plan, name) for name in self.others])
        return dict(zip(self.others, found, strict=True))

    def intervals(self, samples: Mapping[str, Sample]) -> dict[str, Interval | None]:
        """The ratios of ``others``."""
        family = sum(self.plan.role(name) == "candidate" for name in self.others)
        copies = [len(copies_of_baseline(self.plan, name)) for name in self.others]
        found = self.ratios(list(samples.values()), copies=copies, family=family)
        return dict(zip(samples, found, strict=True))

    def ratios(self, samples: Sequence[Sample], *, copies: Sequence[int], family: int) -> list[Interval | None]:
        """Ratios with their intervals.

        Args:
            samples: of ``samples``, those that claim something first.
            copies: for each, of how many copies the arm is that it is held against.
            family: how many claim something.
        """
        confidence = self.plan.measurement.confidence
        runs = [sample for sample in samples if isinstance(sample, tuple)]
        if runs:
            return [separate_ratio(ours, theirs, confidence=confidence, family=family) for ours, theirs in runs]
        return ratio_intervals(
            [sample for sample in samples if not isinstance(sample, tuple)],
            confidence=confidence,
            scales=[1 + 1 / number for number in copies],
            family=family,
            error_share=self.error_share,
        )

    def _runs(self, blocks: pd.DataFrame) -> dict[str, Runs]:
        """Every arm's runs in the order of their start."""
        started = {(record.arm, record.launch): record.started_at for record in self.records}
        sync = blocks[blocks["kind"] == "sync"]
        found = {}
        for arm in self.plan.compared_arms():
            own = sync[sync["arm"] == arm].groupby("launch")[["samples", "block_s"]]
            runs = sorted(
                ((started[arm, int(str(launch))], table.to_numpy(dtype=np.float64)) for launch, table in own), key=itemgetter(0)
            )
            found[arm] = runs_of([at for at, _ in runs], [table for _, table in runs])
        return found


def summarise_ratios(evidence: Evidence) -> list[RatioSummary]:
    """The ratio of every other arm to the baseline, in every case, the control first; without figures where there is no timing."""
    cases: list[str | None] = [case.name for case in cases_of(evidence.records)]
    return [result for case in cases or [None] for result in _ratios_of_case(evidence, case)]


def _ratios_of_case(evidence: Evidence, case: str | None) -> list[RatioSummary]:
    """The ratios of one case, or of a workload that is trained (``case`` is None)."""
    plan = evidence.plan
    blocks = evidence.blocks if case is None else evidence.blocks[evidence.blocks["case"] == case]
    samples = evidence.samples_of_others(blocks)
    intervals = evidence.intervals(samples)
    calm = None if case else evidence.samples_of_others(without_stalls(blocks, evidence.stalls))
    control = next((intervals[name] for name in intervals if plan.role(name) == "control"), None)
    is_disturbed = not is_quiet(summarise_load(evidence.loads))
    calmer = evidence.samples_of_others(undisturbed(blocks, evidence.loads)) if is_disturbed else None
    quiet = evidence.intervals(calmer) if calmer is not None else None
    found = {}
    for name, interval in intervals.items():
        result = _without_verdict(evidence, name, case, blocks, interval)
        sample, others = samples[name], quiet[name] if quiet is not None else None
        result.run_order = run_order(*sample) if isinstance(sample, tuple) else None
        result.typical_ratio = _typical(sample)
        result.ratio_without_stalls = _ratio(calm[name]) if calm is not None else None
        result.quiet_ratio = others.estimate if others else None
        _judge(evidence, result, interval, control, quiet)
        if case is None:
            evidence.terms.explain(result, copies_of_baseline(plan, name))
        found[name] = result
    return [found[name] for name in plan.compared_arms() if name in found]


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


def _ratio(sample: Sample) -> float | None:
    """The ratio of totals alone."""
    if isinstance(sample, tuple):
        return ratio_of_runs(*sample)
    found = launch_ratios(sample)
    return float(np.exp(found.logs.mean())) if found else None


def _typical(sample: Sample) -> float | None:
    """The ratio of usual blocks."""
    return ratio_of_usual_blocks(*sample) if isinstance(sample, tuple) else typical_ratio(sample)


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
        elif quiet is not None and not _holds_under_load(evidence, result, interval, control, quiet[result.candidate]):
            withheld = "load"
    result.withheld_by = withheld
    result.verdict = "undecided" if withheld else alone
    if alone == "undecided":
        measured = result.launches if evidence.are_runs else evidence.minutes
        more = to_decide(interval, threshold=threshold, measured=measured, launches=result.launches)
        if more is None:
            return
        result.more_range = (more.low, more.high)
        if evidence.are_runs:
            result.more_runs = None if more.value is None else math.ceil(more.value)
        else:
            result.more_minutes = more.value


def _holds_under_load(
    evidence: Evidence, result: RatioSummary, interval: Interval, control: Interval | None, quiet: Interval | None
) -> bool:
    """Whether the undisturbed rounds say the same; where they tell nothing, whether load could not have made the difference.

    Sets ``load_reach`` where they tell nothing.
    """
    says_the_same = decide(quiet, threshold=evidence.threshold) == result.verdict_alone
    if says_the_same or not tells_nothing(quiet, interval):
        return says_the_same
    arms = [result.candidate, *copies_of_baseline(evidence.plan, result.candidate)]
    hit = evidence.loads[evidence.loads["disturbed"] & evidence.loads["arm"].isin(arms)]
    reach = reach_of_load(float((hit["foreign"] + hit["steal"]).mean()) if len(hit) else 0.0, control)
    result.load_reach = math.exp(reach)
    return stands_clear(interval, reach)


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
    samples = evidence.samples(evidence.blocks, [[best, name] for name in others])
    intervals = evidence.ratios(samples, copies=[1] * len(others), family=len(others))
    tied = [name for name, one in zip(others, intervals, strict=True) if decide(one, threshold=evidence.threshold) != "faster"]
    return [best, *([] if timed[best].verdict == "faster" else [plan.baseline]), *tied]
