"""The sentences of a study: who is fastest where, and how each arm scales."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from measurement.plans.plan import Plan
from reports.conclusions.scaling import leaders, units
from reports.schema import Comparison
from reports.wording.comparison_sentences import chance_lines, first_line, what_failed
from reports.wording.disturbances import run_lines
from reports.wording.formatting import count, listed, percent
from reports.wording.headlines import MAX_WORDS, fitting
from reports.wording.reasons import caution_lines


def headline(points: Sequence[Comparison], plan: Plan) -> str:
    """Who is fastest where, and between which points that changes.

    Without any candidate to compare: how the first arm scales.
    """
    partly = {
        arm.name for point in points for arm in point.arms if arm.status == "not at this point"
    }
    led = [(point, who) for point in points if (who := leaders(point, without=partly))]
    if not led:
        return next(iter(findings(points, plan)), "Nothing could be compared at any point")
    leads = {point.name: _lead(point, who, plan) for point, who in led}
    where = {
        lead: [place for place in leads if leads[place] == lead]
        for lead in dict.fromkeys(leads.values())
    }
    alone = [(point.name, who[0]) for point, who in led if len(who) == 1]
    changes = [f"{a} and {b}" for (a, before), (b, after) in pairwise(alone) if before != after]
    winners = [f"it changes between {listed(changes, ', and between ')}"] if changes else []
    clauses = [f"{lead} at {listed(places)}" for lead, places in where.items()]
    if len("; ".join([*clauses, *winners]).split()) > MAX_WORDS:
        numbers = [f"{len(places)}" for places in where.values()]
        numbers[0] += f" of {len(led)} points"
        clauses = [f"{lead} at {number}" for lead, number in zip(where, numbers, strict=True)]
    sentence = fitting([clauses[0], *winners, *clauses[1:]])
    return sentence if sentence.startswith(tuple(plan.arms)) else sentence[0].upper() + sentence[1:]


def _lead(point: Comparison, who: Sequence[str], plan: Plan) -> str:
    """A clause on the arms in the lead at a point: those that none is shown to beat."""
    if len(who) == 1:
        return f"{who[0]} is fastest"
    if plan.baseline not in who:
        return f"{listed(who)} are tied as fastest"
    is_open = any(
        (result := point.result(name)) is not None and result.verdict == "undecided" for name in who
    )
    return "undecided" if is_open else "no arm leads"


def findings(points: Sequence[Comparison], plan: Plan) -> list[str]:
    """One sentence on each arm: how it scales."""
    return [line for name in plan.arms if (line := scaling_sentence(points, name))]


def bases(study: Comparison) -> list[str]:
    """What each arm's scaling is relative to, a line for each such base."""
    base_of_arm = {
        arm.name: arm.scaling_baseline
        for point in study.points
        for arm in point.arms
        if arm.scaling_baseline
    }
    by_base = {
        base: [arm for arm, arm_base in base_of_arm.items() if arm_base == base]
        for base in dict.fromkeys(base_of_arm.values())
    }
    return [f"{listed(arms)}: relative to {base}" for base, arms in by_base.items()]


def scaling_sentence(points: Sequence[Comparison], name: str) -> str | None:
    """Speed-up and efficiency at the most ranks that the arm was measured with."""
    most = max(points, key=lambda point: (point.arm(name).speed_up is not None, point.world_size))
    arm = most.arm(name)
    if (
        arm.speed_up is None
        or arm.scaling_efficiency is None
        or most.world_size in (1, min(point.world_size for point in points))
    ):
        return None
    base = (arm.scaling_baseline or "").partition(" (")[0]
    used = count(units(arm, most), "core" if most.device == "cpu" else "GPU")
    return (
        f"{name} at {most.name} ({most.world_size} ranks on {used}): {arm.speed_up.value:.2f} times"
        f" the throughput of {base}, an efficiency of {arm.scaling_efficiency.value:.0%}"
    )


def trained_to(target_accuracy: float | None) -> str:
    """The end of a training up to which its time is measured."""
    return (
        f"{percent(target_accuracy)} accuracy" if target_accuracy is not None else "the last epoch"
    )


def warnings(points: Sequence[Comparison], plan: Plan) -> list[str]:
    """What a reader must know before believing the figures, point by point."""
    lines = [f"{point.name}: {line}" for point in points for line in _point_warnings(point)]
    compared = [
        point.results
        for point in points
        if any(result.throughput_ratio is not None for result in point.results)
    ]
    results = [result for of_point in compared for result in of_point]
    return lines + chance_lines(
        results, comparisons=len(compared), kind="points", confidence=plan.measurement.confidence
    )


def _point_warnings(point: Comparison) -> list[str]:
    failed = [(arm, arm.errors[0].message) for arm in point.arms if arm.has_failed and arm.errors]
    failures = [f"{arm.name} {what_failed(arm)}: {first_line(message)}" for arm, message in failed]
    return [
        *point.elsewhere,
        *([first_line(point.cause)] if point.cause else failures),
        *[
            "the control failed, see its own report"
            for result in point.results
            if result.control_failed
        ][:1],
        *run_lines(point.results),
        *caution_lines(point.results),
    ]
