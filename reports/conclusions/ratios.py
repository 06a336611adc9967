"""The ratio of every arm to the baseline, with its interval; the verdict that it gives, what
withholds it, and the control's veto.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from measurement.plans.plan import Plan
from reports.conclusions.machine import (
    MIN_STALLS,
    is_quiet,
    summarise_load,
    undisturbed,
    without_stalls,
)
from reports.conclusions.steps import (
    copies_of_baseline,
    log_levels,
    total_tables,
    totals,
)
from reports.conclusions.summaries import Evidence
from reports.parts_schema import Estimate
from reports.reasons import Withheld
from reports.schema import ArmSummary, RatioBySpeed, RatioSummary, Verdict
from reports.statistics.budget import Spread, spread_of, to_decide
from reports.statistics.intervals import (
    launch_ratios,
    ratio_by_speed,
    ratio_intervals,
)
from reports.statistics.student import RatioEstimate, Runs, run_order, separate_ratio

OF_LIBRARY = {"backend", "transport", "launcher", "options"}
"""Keys of an arm that leave the model and its environment as the floor has them."""
LOAD_POWER = 2
"""Load may slow one arm by its share of the cores, and once more since ranks wait for each other;
and another arm not at all."""
MAX_LOAD = 0.99
"""A share of the cores beyond this counts as this much."""
MAX_CONTROL_WIDTH = 1.5
"""A control's interval whose ends differ by a larger factor shows nothing."""


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
    intervals = _intervals(
        evidence, evidence.blocks, [[best, name] for name in others], family=len(others)
    )
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
    plan = evidence.plan
    groups = _groups(plan)
    family = sum(plan.role(name) == "candidate" for name in groups)
    estimates = _intervals(evidence, blocks, list(groups.values()), family=family)
    return dict(zip(groups, estimates, strict=True))


def find_spread(
    plan: Plan, blocks: pd.DataFrame, *, cases: Sequence[str | None] = (None,)
) -> Spread:
    """How much the ratios of these blocks vary within and between launches.

    It does not show the ratios.
    """
    groups = list(_groups(plan).values())
    by_case = [blocks if case is None else blocks[blocks["case"] == case] for case in cases]
    ratios = [
        launch_ratios(table)
        for case_blocks in by_case
        for table in total_tables(plan, case_blocks, groups, by_round=True)
    ]
    return spread_of([ratio for ratio in ratios if ratio is not None])


def _groups(plan: Plan) -> dict[str, list[str]]:
    """Per ratio the arm, then those that it is compared with: the candidates first, the control
    last.
    """
    roles = plan.roles()
    return {
        name: [name, *copies_of_baseline(plan, name)]
        for wanted in ("candidate", "control")
        for name, role in roles.items()
        if role == wanted
    }


def _intervals(
    evidence: Evidence, blocks: pd.DataFrame, groups: Sequence[Sequence[str]], *, family: int
) -> list[RatioEstimate | None]:
    """Ratios in these blocks, of one case where there are several, with their intervals.

    ``groups``: per ratio the arm, then copies of the one that it is compared with. Those that claim
    something come first; ``family`` is how many do.
    """
    if evidence.are_runs:
        return [
            separate_ratio(
                *_runs(evidence, blocks, arms), confidence=evidence.confidence, family=family
            )
            for arms in groups
        ]
    return ratio_intervals(
        total_tables(evidence.plan, blocks, groups),
        confidence=evidence.confidence,
        family=family,
        error_share=evidence.error_share,
    )


def _runs(evidence: Evidence, blocks: pd.DataFrame, arms: Sequence[str]) -> list[Runs]:
    """The runs of each of these arms, in the order of their start."""
    sums, runs = totals(blocks, ["arm", "launch"]), []
    for arm in arms:
        started = sorted(
            (record.started_at, record.launch)
            for record in evidence.records
            if record.arm == arm and (arm, record.launch) in sums.index
        )
        rates = sums["throughput_per_s"].loc[[(arm, launch) for _, launch in started]]
        runs.append(Runs(logs=np.log(rates.to_numpy()), started=[at for at, _ in started]))
    return runs


def _ratios_of_case(
    evidence: Evidence, case: str | None, arms: Mapping[str, ArmSummary]
) -> list[RatioSummary]:
    """The ratios of one case, or of a workload that is trained (``case`` is None)."""
    plan = evidence.plan
    blocks = evidence.blocks if case is None else evidence.blocks[evidence.blocks["case"] == case]
    intervals = ratio_intervals_of(evidence, blocks)
    calm: Mapping[str, RatioEstimate | None] = {}
    quiet: Mapping[str, RatioEstimate | None] = {}
    by_speed: Mapping[str, RatioBySpeed | None] = {}
    if case is None:
        calm = ratio_intervals_of(evidence, without_stalls(blocks, evidence.stalls))
        by_speed = _by_speed(evidence, blocks)
    if not is_quiet(summarise_load(evidence.block_counters)):
        quiet = ratio_intervals_of(evidence, undisturbed(blocks, evidence.block_counters))
    results = []
    for name in (name for name in plan.compared_arms() if name in intervals):
        interval, without = intervals[name], calm.get(name)
        fields = _verdict_fields(evidence, name, intervals, without, arms, quiet)
        if interval:
            bounds = interval.model_dump(exclude={"value"})
            fields |= {"throughput_ratio": interval.value, **bounds}
        if case is None and not plan.batches:  # terms are of a step
            fields |= evidence.terms.difference_fields(
                name,
                copies_of_baseline(plan, name),
                fields["verdict"],
                confidence=evidence.confidence,
            )
        if evidence.are_runs:
            fields["run_order"] = run_order(*_runs(evidence, blocks, [name, plan.baseline]))
        results.append(
            RatioSummary(
                baseline=plan.baseline,
                candidate=name,
                case=case,
                role="control" if plan.role(name) == "control" else "candidate",
                confidence=evidence.confidence,
                ratio_without_stalls=without.value if without else None,
                by_speed=by_speed.get(name),
                **fields,
            )
        )
    return results


def _by_speed(evidence: Evidence, blocks: pd.DataFrame) -> dict[str, RatioBySpeed | None]:
    """By candidate, how its ratio moves with the control's speed, which stands for the machine's;
    None where it does not.
    """
    plan = evidence.plan
    names = [name for name in plan.compared_arms() if plan.role(name) == "candidate"]
    if evidence.are_runs or not plan.measurement.control or not len(blocks):
        return {}
    levels = log_levels(blocks, [plan.control_name, plan.baseline, *names])
    ratios, each = levels[:, 2:] - levels[:, 1:2], evidence.confidence ** (1 / max(len(names), 1))
    return {
        name: ratio_by_speed(ratios[:, number], levels[:, 0], confidence=each)
        for number, name in enumerate(names)
    }


def _verdict_fields(
    evidence: Evidence,
    name: str,
    intervals: Mapping[str, RatioEstimate | None],
    calm: RatioEstimate | None,
    arms: Mapping[str, ArmSummary],
    quiet: Mapping[str, RatioEstimate | None],
) -> dict[str, Any]:
    """Fields of ``RatioSummary``: the verdict, what withholds it, or how much more measuring should
    bring one.

    ``calm``: the ratio as if each stall had been a median step. ``quiet``: the ratios in the
    undisturbed rounds, where many were disturbed.
    """
    plan, threshold = evidence.plan, evidence.threshold
    interval, ours, theirs = intervals[name], arms[name], arms[plan.baseline]
    alone = decide(interval, threshold=threshold)
    reasons: dict[str, Any] = {}
    if interval and (withheld := _incomparable(evidence, ours, theirs)):
        reasons = {"withheld_by": withheld}
    elif interval and alone == "undecided":
        reasons = _required_measuring(
            evidence, interval, threshold=threshold, launches=interval.launches
        )
    elif interval:
        reasons = _doubt(evidence, ours, theirs, intervals, calm, quiet)
    verdict = "undecided" if reasons.get("withheld_by") else alone
    if interval and verdict in ("faster", "slower") and name != plan.control_name:
        reasons |= _unconfirmed_fields(evidence, interval, intervals.get(plan.control_name))
    return {"verdict": verdict, "verdict_alone": alone, **reasons}


def _incomparable(evidence: Evidence, ours: ArmSummary, theirs: ArmSummary) -> Withheld | None:
    """Why the speeds of two arms cannot be compared, whatever their ratio; None: they can."""
    plan = evidence.plan
    if plan.scripts.cpu:
        return "cpu"
    if evidence.unlike_work.get(ours.name):
        return "work"
    is_alike = all(
        arm.model_dump(exclude_defaults=True).keys() <= OF_LIBRARY for arm in plan.arms.values()
    )
    return "implausible" if is_alike and (ours.is_implausible or theirs.is_implausible) else None


def _doubt(
    evidence: Evidence,
    ours: ArmSummary,
    theirs: ArmSummary,
    intervals: Mapping[str, RatioEstimate | None],
    calm: RatioEstimate | None,
    quiet: Mapping[str, RatioEstimate | None],
) -> dict[str, Any]:
    """Fields of ``RatioSummary``: what withholds a verdict that the interval gives, and how many
    times as fast load alone may make an arm, where that matters.
    """
    name, threshold, plan = ours.name, evidence.threshold, evidence.plan
    interval, control = intervals[name], intervals.get(plan.control_name)
    assert interval is not None, "it gives a verdict"
    alone = decide(interval, threshold=threshold)
    if name != plan.control_name and alone != decide(
        interval, threshold=threshold, control=control
    ):
        return {"withheld_by": "control"}
    if calm and ours.stalls and theirs.stalls:
        worse = max(ours.stalls, theirs.stalls, key=lambda stalls: stalls.share)
        moved = decide(interval.times(calm.value / interval.value), threshold=threshold)
        if 0 < worse.count < MIN_STALLS and moved != alone:
            return {"withheld_by": "stalls"}  # too few to estimate how often they occur
    if not quiet or decide(quiet[name], threshold=threshold) == alone:
        return {}
    if not is_uninformative(quiet[name], interval):
        return {"withheld_by": "load"}
    counters = evidence.block_counters
    of_pair = counters["arm"].isin([name, *copies_of_baseline(plan, name)])
    hit = counters[counters["disturbed"] & of_pair]
    load = float((hit["foreign_share"] + hit["steal_share"]).mean()) if len(hit) else 0.0
    reach = reach_of_load(load, control)
    withheld = None if exceeds_margin(interval, reach) else "load"
    return {"withheld_by": withheld, "load_reach": math.exp(reach)}


def _unconfirmed_fields(
    evidence: Evidence, claim: RatioEstimate, control: RatioEstimate | None
) -> dict[str, Any]:
    """Fields of ``RatioSummary``: that a wide control leaves a claim unconfirmed, and how much more
    measuring should narrow it; none where the claim is beyond the control, or there is none.
    """
    if control is None or not is_wide(control) or exceeds_margin(claim, farthest(control)):
        return {}
    assert control.bounds is not None, "it is wide"
    low, high = (bound / control.value for bound in control.bounds)
    more = _required_measuring(
        evidence,
        Estimate(value=1.0, ci_low=low, ci_high=high),
        threshold=math.log(MAX_CONTROL_WIDTH) / 2,
        launches=control.launches,
    )
    return {"is_unconfirmed": True, **more}


def _required_measuring(
    evidence: Evidence, interval: Estimate, *, threshold: float, launches: int
) -> dict[str, Any]:
    """Fields of ``RatioSummary``: how much to add to what was measured until the interval of so
    many launches is decided; none where nothing can be said.
    """
    measured = launches if evidence.are_runs else evidence.spent_minutes
    more = to_decide(interval, threshold=threshold, measured=measured, launches=launches)
    if more is None:
        return {}
    value = more.value
    if evidence.are_runs and value is not None:
        value = math.ceil(value)
    unit = "more_runs" if evidence.are_runs else "more_minutes"
    return {"more_range": (more.low, more.high), unit: value}


def decide(
    interval: Estimate | None, *, threshold: float, control: Estimate | None = None
) -> Verdict:
    """The verdict on a candidate relative to its baseline, by the interval of their ratio; None:
    there is no timing.

    Faster and slower take the two-sided interval. Equivalence is two one-sided tests against the
    threshold: a ratio within ±this of 1 is of no practical interest. Where the control's interval
    excludes 1, no smaller claim is made.
    """
    if interval is None or interval.bounds is None:
        return "undecided"
    low, high = interval.bounds
    least, most = interval.one_sided or (0.0, math.inf)
    verdict: Verdict = "undecided"
    if low > 1 and interval.value >= 1 + threshold:
        verdict = "faster"
    elif high < 1 and interval.value <= 1 - threshold:
        verdict = "slower"
    elif 1 - threshold <= least and most <= 1 + threshold:
        verdict = "equivalent"
    claim = threshold if verdict == "equivalent" else abs(math.log(interval.value))
    is_vetoed = control is not None and control.excludes(1.0) and claim <= farthest(control)
    return "undecided" if is_vetoed else verdict


def farthest(interval: Estimate | None) -> float:
    """How far an interval reaches from 1, as a log-ratio; 0 without one."""
    bounds = interval.bounds if interval else None
    return max(abs(math.log(bound)) for bound in bounds) if bounds else 0.0


def is_wide(control: Estimate | None) -> bool:
    """Whether the interval of a control is too wide to show that equal arms come out equal."""
    bounds = control.bounds if control else None
    return bounds is not None and bounds[1] > MAX_CONTROL_WIDTH * bounds[0]


def reach_of_load(share: float, control: Estimate | None) -> float:
    """How large a log-ratio load alone may make between arms that are alike.

    ``share``: of the cores, that others took in the disturbed blocks. The control may reach farther
    from 1 than it accounts for.
    """
    return LOAD_POWER * max(-math.log1p(-min(share, MAX_LOAD)), farthest(control))


def exceeds_margin(interval: Estimate, reach: float) -> bool:
    """Whether the whole interval is farther from 1 than ``reach``, a log-ratio."""
    return (
        interval.bounds is not None
        and max(math.log(interval.bounds[0]), -math.log(interval.bounds[1])) > reach
    )


def is_uninformative(interval: Estimate | None, other: Estimate) -> bool:
    """Whether an interval is missing, or so wide that it excludes neither 1 nor the estimate of the
    other.
    """
    return interval is None or not (interval.excludes(1.0) or interval.excludes(other.value))
