"""The ratio of every arm to the baseline, with its interval and what may be claimed from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from measurement.plans.plan import Plan
from reports.conclusions.blocks import (
    PAIR_COLUMNS,
    THROUGHPUT,
    columns,
    copies_of_baseline,
    log_levels,
    pair_blocks,
    total_tables,
)
from reports.conclusions.disturbances import (
    MIN_STALLS,
    is_quiet,
    summarise_load,
    undisturbed,
    without_stalls,
)
from reports.conclusions.evidence import Evidence
from reports.conclusions.verdict import (
    decide,
    exceeds_margin,
    is_uninformative,
    reach_of_load,
    to_decide,
)
from reports.reasons import Withheld
from reports.schema import ArmSummary, RatioBySpeed, RatioSummary, Verdict
from reports.statistics.budget import Spread, spread_of
from reports.statistics.intervals import (
    Launches,
    RatioEstimate,
    launch_ratios,
    ratio_by_speed,
    ratio_intervals,
    typical_ratio,
)
from reports.statistics.separate import Runs, ratio_of_runs, run_order, runs_of, separate_ratio

OF_LIBRARY = {"backend", "transport", "launcher", "options"}
"""Keys of an arm that leave the model and its environment as the floor has them."""
Sample = Launches | tuple[Runs, Runs]
"""What one ratio is made of: blocks of rounds, or the runs of two arms that took no turns."""


def summarise_ratios(evidence: Evidence, arms: Sequence[ArmSummary]) -> list[RatioSummary]:
    """The ratio of every other arm to the baseline, case by case, in the plan's order; without
    figures where nothing was timed.
    """
    by_name = {arm.name: arm for arm in arms}
    cases: list[str | None] = [case.name for case in evidence.cases]
    return [
        result for case in cases or [None] for result in _ratios_of_case(evidence, case, by_name)
    ]


def fastest(evidence: Evidence, results: Sequence[RatioSummary]) -> list[str]:
    """The arms than which none is shown to be faster: one, or several that are tied.

    None without a ratio, and of a micro-benchmark. The fastest by its estimate is compared with
    every other arm at once, as in Hsu's multiple comparisons with the best (Annals of Statistics 9,
    1981): against the baseline by its verdict, against candidates by their own blocks of the same
    rounds.
    """
    ratios = {
        result.candidate: result.throughput_ratio
        for result in results
        if result.role == "candidate"
        and result.throughput_ratio is not None
        and result.is_comparable
    }
    if not ratios or evidence.cases:
        return []
    verdicts = {result.candidate: result.verdict for result in results}
    best, baseline = max(ratios, key=lambda name: ratios[name]), evidence.plan.baseline
    if ratios[best] < 1.0:
        return [baseline, *(name for name in ratios if verdicts[name] != "slower")]
    others = [name for name in ratios if name != best]
    samples = _samples(evidence, evidence.blocks, [[best, name] for name in others])
    intervals = _intervals(evidence, samples, copies=[1] * len(others), family=len(others))
    tied = [
        name
        for name, interval in zip(others, intervals, strict=True)
        if decide(interval, threshold=evidence.threshold) != "faster"
    ]
    return [best, *([] if verdicts[best] == "faster" else [baseline]), *tied]


def ratio_intervals_of(
    evidence: Evidence, blocks: pd.DataFrame
) -> Mapping[str, RatioEstimate | None]:
    """The ratio of every other arm to the baseline in these blocks, of one case where there are
    several; by arm.
    """
    return _Ratios.find(evidence, blocks).intervals


def find_spread(
    plan: Plan, blocks: pd.DataFrame, *, cases: Sequence[str | None] = (None,)
) -> Spread:
    """How much the ratios of these blocks vary within and between launches.

    It does not show the ratios.
    """
    groups = [
        [name, *copies_of_baseline(plan, name)]
        for name in plan.compared_arms()
        if name != plan.baseline
    ]
    launches = []
    for case in cases:
        case_blocks = blocks if case is None else blocks[blocks["case"] == case]
        tables = total_tables(plan, case_blocks, groups, by_round=True)
        scales = [1 + 1 / (len(group) - 1) for group in groups]
        launches += [
            launch_ratios(table, scale=scale) for table, scale in zip(tables, scales, strict=True)
        ]
    return spread_of([ratios for ratios in launches if ratios is not None])


def _samples(
    evidence: Evidence, blocks: pd.DataFrame, groups: Sequence[Sequence[str]]
) -> list[Sample]:
    """What ratios are made of in these blocks, which are of one case where there are several.

    ``groups``: per ratio the arm, then those that it is compared with, which are copies of one arm.
    """
    if not evidence.are_runs:
        return list(total_tables(evidence.plan, blocks, groups))
    runs = {arm: _runs(evidence, blocks, arm) for arm in evidence.plan.compared_arms()}
    return [(runs[ours], runs[theirs]) for ours, theirs in groups]


def _runs(evidence: Evidence, blocks: pd.DataFrame, arm: str) -> Runs:
    """An arm's runs in the order of their start."""
    sync = dict(list(blocks[(blocks["arm"] == arm) & (blocks["kind"] == "sync")].groupby("launch")))
    started = sorted(
        (record.started_at, record.launch)
        for record in evidence.records
        if record.arm == arm and record.launch in sync
    )
    return runs_of(
        [at for at, _ in started],
        [sync[launch][THROUGHPUT].to_numpy(dtype=np.float64) for _, launch in started],
    )


def _intervals(
    evidence: Evidence, samples: Sequence[Sample], *, copies: Sequence[int], family: int
) -> list[RatioEstimate | None]:
    """Ratios with their intervals, those that claim something first; ``family`` is how many do.

    ``copies``: for each, of how many copies the arm is that it is compared with.
    """
    runs = [sample for sample in samples if isinstance(sample, tuple)]
    if runs:
        return [
            separate_ratio(ours, theirs, confidence=evidence.confidence, family=family)
            for ours, theirs in runs
        ]
    return ratio_intervals(
        [sample for sample in samples if not isinstance(sample, tuple)],
        confidence=evidence.confidence,
        scales=[1 + 1 / number for number in copies],
        family=family,
        error_share=evidence.error_share,
    )


@dataclass(frozen=True, kw_only=True)
class _Ratios:
    """The ratios of some blocks, by candidate, the control last."""

    evidence: Evidence
    samples: Mapping[str, Sample]

    @classmethod
    def find(cls, evidence: Evidence, blocks: pd.DataFrame) -> _Ratios:
        plan = evidence.plan
        names = [
            name
            for role in ("candidate", "control")
            for name, arm_role in plan.roles().items()
            if arm_role == role
        ]
        samples = _samples(
            evidence, blocks, [[name, *copies_of_baseline(plan, name)] for name in names]
        )
        return cls(evidence=evidence, samples=dict(zip(names, samples, strict=True)))

    @cached_property
    def intervals(self) -> Mapping[str, RatioEstimate | None]:
        """The ratios with their intervals; worked out where they are asked for, which takes
        longest.
        """
        plan = self.evidence.plan
        copies = [len(copies_of_baseline(plan, name)) for name in self.samples]
        family = sum(plan.role(name) == "candidate" for name in self.samples)
        estimates = _intervals(
            self.evidence, list(self.samples.values()), copies=copies, family=family
        )
        return dict(zip(self.samples, estimates, strict=True))

    def value(self, name: str) -> float | None:
        """The ratio of totals alone."""
        sample = self.samples[name]
        if isinstance(sample, tuple):
            return ratio_of_runs(*sample)
        ratios = launch_ratios(sample)
        return float(np.exp(ratios.logs.mean())) if ratios else None


def _ratios_of_case(
    evidence: Evidence, case: str | None, arms: Mapping[str, ArmSummary]
) -> list[RatioSummary]:
    """The ratios of one case, or of a workload that is trained (``case`` is None)."""
    plan = evidence.plan
    blocks = evidence.blocks if case is None else evidence.blocks[evidence.blocks["case"] == case]
    ratios = _Ratios.find(evidence, blocks)
    calm = _Ratios.find(evidence, without_stalls(blocks, evidence.stalls)) if case is None else None
    is_disturbed = not is_quiet(summarise_load(evidence.block_counters))
    quiet = (
        _Ratios.find(evidence, undisturbed(blocks, evidence.block_counters))
        if is_disturbed
        else None
    )
    by_speed = _by_speed(evidence, blocks) if case is None else {}
    results = []
    for name in plan.compared_arms():
        if name not in ratios.samples:
            continue
        sample, interval = ratios.samples[name], ratios.intervals[name]
        without = calm.value(name) if calm else None
        judged = _verdict_fields(evidence, name, ratios.intervals, without, arms, quiet)
        copies = copies_of_baseline(plan, name)
        has_terms = case is None and not plan.batches  # they are of a step
        terms = (
            evidence.terms.difference_fields(
                name, copies, judged["verdict"], confidence=evidence.confidence
            )
            if has_terms
            else {}
        )
        undisturbed_ratio = quiet.intervals[name] if quiet else None
        results.append(
            RatioSummary(
                baseline=plan.baseline,
                candidate=name,
                case=case,
                role="control" if plan.role(name) == "control" else "candidate",
                world_size=plan.world_size,
                hosts=next((record.hosts for record in evidence.records if record.arm == name), []),
                confidence=evidence.confidence,
                throughput_ratio=interval.value if interval else None,
                **(interval.model_dump(exclude={"value"}) if interval else {}),
                pair_table=columns(
                    _marked(evidence, pair_blocks(plan, blocks, name), name),
                    [*PAIR_COLUMNS, "disturbed"],
                ),
                run_order=run_order(*sample) if isinstance(sample, tuple) else None,
                typical_ratio=ratio_of_runs(*sample, usual_blocks=True)
                if isinstance(sample, tuple)
                else typical_ratio(sample),
                ratio_without_stalls=without,
                by_speed=by_speed.get(name),
                quiet_ratio=undisturbed_ratio.value if undisturbed_ratio else None,
                **judged,
                **terms,
            )
        )
    return results


def _by_speed(evidence: Evidence, blocks: pd.DataFrame) -> dict[str, RatioBySpeed]:
    """Those candidates whose ratio moves with the control's speed, which stands for the
    machine's.
    """
    plan = evidence.plan
    names = [name for name in plan.compared_arms() if plan.role(name) == "candidate"]
    if evidence.are_runs or not plan.measurement.control or not len(blocks):
        return {}
    levels = log_levels(blocks, [plan.control_name, plan.baseline, *names])
    ratios, each = levels[:, 2:] - levels[:, 1:2], evidence.confidence ** (1 / max(len(names), 1))
    by_candidate = {
        name: ratio_by_speed(ratios[:, number], levels[:, 0], confidence=each)
        for number, name in enumerate(names)
    }
    return {name: dependence for name, dependence in by_candidate.items() if dependence is not None}


def _disturbed(evidence: Evidence, name: str) -> pd.DataFrame:
    """Counters of the disturbed blocks of an arm and of those that it is compared with."""
    arms = [name, *copies_of_baseline(evidence.plan, name)]
    counters = evidence.block_counters
    return counters[counters["disturbed"] & counters["arm"].isin(arms)]


def _marked(evidence: Evidence, pairs: pd.DataFrame, name: str) -> pd.DataFrame:
    """Pairs with ``disturbed``: whether others disturbed one of the arms in that round."""
    key = ["launch", "round"]
    hit = pd.MultiIndex.from_frame(_disturbed(evidence, name)[key])
    return pairs.assign(disturbed=pd.MultiIndex.from_frame(pairs[key]).isin(hit))


def _verdict_fields(
    evidence: Evidence,
    name: str,
    intervals: Mapping[str, RatioEstimate | None],
    without_stalls: float | None,
    arms: Mapping[str, ArmSummary],
    quiet: _Ratios | None,
) -> dict[str, Any]:
    """Fields of ``RatioSummary``: the verdict, what withholds it, or how much more measuring should
    bring one.
    """
    plan, interval, threshold = evidence.plan, intervals[name], evidence.threshold
    control = next(
        (estimate for other, estimate in intervals.items() if plan.role(other) == "control"), None
    )
    alone = decide(interval, threshold=threshold)
    if interval is not None and (plan.scripts.cpu or evidence.unlike_work.get(name)):
        return {
            "verdict": "undecided",
            "verdict_alone": alone,
            "withheld_by": "cpu" if plan.scripts.cpu else "work",
        }
    is_alike = all(
        arm.model_dump(exclude_defaults=True).keys() <= OF_LIBRARY for arm in plan.arms.values()
    )
    if (
        interval is not None
        and is_alike
        and (arms[name].is_implausible or arms[plan.baseline].is_implausible)
    ):
        return {"verdict": "undecided", "verdict_alone": alone, "withheld_by": "implausible"}
    if interval is None or alone == "undecided":
        return {"verdict": alone, "verdict_alone": alone, **_required_measuring(evidence, interval)}
    withheld: Withheld | None = None
    reach = None
    if (
        plan.role(name) == "candidate"
        and decide(interval, threshold=threshold, control=control) != alone
    ):
        withheld = "control"
    elif _depends_on_few_stalls(
        arms[name], arms[plan.baseline], interval, without_stalls, threshold
    ):
        withheld = "stalls"
    elif quiet is not None and decide(quiet.intervals[name], threshold=threshold) != alone:
        if is_uninformative(quiet.intervals[name], interval):
            hit = _disturbed(evidence, name)
            reach = reach_of_load(
                float((hit["foreign_share"] + hit["steal_share"]).mean()) if len(hit) else 0.0,
                control,
            )
        withheld = None if reach is not None and exceeds_margin(interval, reach) else "load"
    verdict: Verdict = "undecided" if withheld else alone
    load_reach = None if reach is None else math.exp(reach)
    return {
        "verdict": verdict,
        "verdict_alone": alone,
        "withheld_by": withheld,
        "load_reach": load_reach,
    }


def _depends_on_few_stalls(
    ours: ArmSummary,
    theirs: ArmSummary,
    interval: RatioEstimate,
    without_stalls: float | None,
    threshold: float,
) -> bool:
    """Whether the verdict depends on stalls that are too few to estimate how often they occur."""
    if without_stalls is None or not ours.stalls or not theirs.stalls:
        return False
    worse = max(ours.stalls, theirs.stalls, key=lambda stalls: stalls.share)
    calm = decide(interval.times(without_stalls / interval.value), threshold=threshold)
    return 0 < worse.count < MIN_STALLS and calm != decide(interval, threshold=threshold)


def _required_measuring(evidence: Evidence, interval: RatioEstimate | None) -> dict[str, Any]:
    """Fields of ``RatioSummary``: how much to add to what was measured; none where nothing can be
    said.
    """
    launches = interval.launches if interval else 0
    measured = launches if evidence.are_runs else evidence.spent_minutes
    more = to_decide(interval, threshold=evidence.threshold, measured=measured, launches=launches)
    if more is None:
        return {}
    fields: dict[str, Any] = {"more_range": (more.low, more.high)}
    if evidence.are_runs:
        return fields | {"more_runs": None if more.value is None else math.ceil(more.value)}
    return fields | {"more_minutes": more.value}
