"""The sentences of a report: the answer first, and what weakens it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from measurement.plans.plan import Plan
from measurement.plans.settings import Batches
from reports.conclusions.machine import is_quiet
from reports.conclusions.summaries import VERDICTS, Outcome, count_verdicts
from reports.schema import ArmSummary, RatioSummary
from reports.wording.causes import cause_clause
from reports.wording.disturbances import (
    core_lines,
    page_fault_lines,
    run_lines,
    script_lines,
    skipped_lines,
    stall_lines,
    straggler_lines,
)
from reports.wording.formatting import (
    bounds_text,
    count,
    difference_text,
    interval,
    listed,
    one_sided_percent,
    percent,
    ratio,
)
from reports.wording.reasons import caution_lines, more_words, most_words, verdict_word

IN_BATCHES: dict[Batches, str] = {"own": "At each arm's own batch", "fit": "At equal memory"}
"""The condition of a verdict between arms of different batches."""
FAILURE_WORDS = {"failed": "failed", "wrong": "computes wrongly", "timeout": "ran out of time"}
"""What an arm did, by its status."""
MAX_CONTROL_WIDTH = 1.5
"""A control's interval whose ends differ by a larger factor shows nothing."""
MAX_NAMED = 3
"""Cases that a sentence names."""
MAX_LETTERS = 160
"""Characters of a message that are quoted in a sentence."""


def findings(results: Sequence[RatioSummary], arms: Sequence[ArmSummary], plan: Plan) -> list[str]:
    """One sentence per candidate, see ``in_order``."""
    candidates = [result for result in results if result.role == "candidate"]
    if any(result.case is not None for result in results):
        return _findings_by_case(candidates, arms, plan)
    ordered = in_order(candidates, plan.asked_arms())
    by_name = {arm.name: arm for arm in arms}
    verb = "looks" if any(map(is_wide, results)) else "is"
    return [
        finding(result, by_name[result.candidate], by_name[plan.baseline], plan, verb=verb)
        for result in ordered
    ]


def in_order(candidates: Sequence[RatioSummary], asked: Sequence[str]) -> list[RatioSummary]:
    """Candidates that the plan's question is about first; of both kinds the fastest first, those
    without timing last.
    """
    return sorted(
        candidates,
        key=lambda result: (result.candidate not in asked, -(result.throughput_ratio or 0.0)),
    )


def fastest_sentence(leaders: Sequence[str], plan: Plan) -> list[str]:
    """Which arm is fastest, or among which that is not shown; nothing where one candidate's finding
    says it already.
    """
    if len(plan.arms) < 3 or not leaders:
        return []
    if len(leaders) == 1:
        return [f"Fastest: {leaders[0]}, shown against every other arm measured"]
    return [f"Which is fastest is not decided: {listed(leaders, ' or ')}"]


def _findings_by_case(
    results: Sequence[RatioSummary], arms: Sequence[ArmSummary], plan: Plan
) -> list[str]:
    """One sentence per candidate, the one that is faster in most cases first, those without timing
    last.
    """
    counts, by_name = case_counts(arms, results), {arm.name: arm for arm in arms}
    rest = [arm for arm in arms if arm.role == "candidate" and arm.name not in counts]
    return [
        *(
            f"{name} against {plan.baseline}: {counts_words(outcomes)}"
            for name, outcomes in counts.items()
        ),
        *(
            _no_timing(by_name[plan.baseline] if arm.blocks else arm, arm.name, plan.baseline)
            for arm in rest
        ),
    ]


def case_counts(
    arms: Sequence[ArmSummary], results: Sequence[RatioSummary]
) -> dict[str, Counter[Outcome]]:
    """The verdicts of each candidate that was timed, the one that is faster in most cases first."""
    counts = {arm.name: count_verdicts(arm, results) for arm in arms if arm.role == "candidate"}
    timed = [
        name for name, outcomes in counts.items() if any(outcomes[verdict] for verdict in VERDICTS)
    ]
    return {
        name: counts[name]
        for name in sorted(timed, key=lambda name: counts[name]["slower"] - counts[name]["faster"])
    }


def counts_words(counts: Counter[Outcome]) -> str:
    """Such as ``faster in 12, slower in 5 of 17 cases; not offered: 9``."""
    measured = [f"{verdict} in {counts[verdict]}" for verdict in VERDICTS if counts[verdict]]
    total = sum(counts[verdict] for verdict in VERDICTS)
    parts = [f"{', '.join(measured)} of {count(total, 'case', 'cases')}"] if measured else []
    missing: tuple[Outcome, ...] = ("not offered", "no timing")
    return "; ".join(
        [*parts, *(f"{outcome}: {counts[outcome]}" for outcome in missing if counts[outcome])]
    )


def finding(
    result: RatioSummary, arm: ArmSummary, baseline: ArmSummary, plan: Plan, *, verb: str = "is"
) -> str:
    """The finding on one candidate, in one sentence. ``verb``: "looks" where the control is too
    wide to confirm it.
    """
    ours, theirs = result.candidate, result.baseline
    if result.throughput_ratio is None:
        return _no_timing(arm if arm.throughput_per_s is None else baseline, ours, theirs)
    figures = f"({interval_words(result)})"
    match result.verdict:
        case "faster" | "slower":
            how = f"{difference_text(result.throughput_ratio)} {result.verdict}"
            note = f"; {result.note}" if result.note else ""
            return f"{ours} {verb} {how} than {theirs} {figures}{cause_clause(result)}{note}"
        case "equivalent":
            return (
                f"{ours} and {theirs} are equivalent within"
                f" {percent(plan.measurement.noise_threshold)} {figures}"
            )
    if verdict_word(result) == "no verdict":
        return f"No verdict on {ours} against {theirs} {figures}: {result.note}"
    return (
        f"Undecided whether {ours} or {theirs} is faster"
        f" {figures}{_undecided_clause(result, arm, baseline)}"
    )


def interval_words(result: RatioSummary) -> str:
    """Ratio, interval and launches of a result."""
    if result.throughput_ratio is None:
        return "no timing"
    parts = [f"ratio {ratio(result.throughput_ratio)}"]
    if result.ci_low is not None and result.ci_high is not None:
        parts.append(f"{percent(result.confidence)} interval {interval(result)}")
    if result.verdict == "equivalent" and (
        sides := bounds_text(result.equivalence_low, result.equivalence_high, none="")
    ):
        parts.append(f"{one_sided_percent(result.confidence)} interval {sides}")
    launches = (
        count(result.launches, "launch", "launches")
        if result.run_order is None
        else count(result.launches, "run of each", "runs of each")
    )
    return ", ".join([*parts, launches])


def _undecided_clause(result: RatioSummary, *arms: ArmSummary) -> str:
    if result.withheld_by is None and result.more_range is not None:
        return (
            f"; {more_words(result)} should decide"
            if all(is_quiet(arm.load) for arm in arms)
            else ""
        )
    if result.note:
        return f"; {result.note}"
    near = "the difference is so small beside the noise, or so near the threshold"
    return f"; {near}, that not even {most_words(result)} would decide" if result.ci_low else ""


def _no_timing(arm: ArmSummary, ours: str, theirs: str) -> str:
    message = next((error.message for error in arm.errors), "")
    reason = f"{arm.name} {what_failed(arm)}" + (f": {first_line(message)}" if message else "")
    return f"No comparison of {ours} with {theirs}: {reason}"


def what_failed(arm: ArmSummary) -> str:
    """What an arm without a result did, after its name."""
    return FAILURE_WORDS.get(arm.status, f"is {arm.status}")


def first_line(text: str) -> str:
    """The first line of a message, cut where it is too long for a sentence."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= MAX_LETTERS else line[: MAX_LETTERS - 1] + "…"


def control_sentence(results: Sequence[RatioSummary]) -> str:
    """What the comparison of the baseline with itself says."""
    control = next((result for result in results if result.role == "control"), None)
    if control is None:
        return "No A/A control was run: nothing checks that equal arms come out equal"
    if control.case is not None:
        return _control_by_case([result for result in results if result.role == "control"])
    if control.ci_low is None or control.ci_high is None:
        return (
            f"The A/A control gives no interval ({interval_words(control)}): nothing checks that"
            " equal arms come out equal"
        )
    figures, reach = interval_words(control), as_factor(farther_bound(control))
    if control.control_failed:
        return (
            f"The A/A control failed: {control.baseline} against itself differs ({figures}), "
            f"so no difference below {difference_text(reach)} is claimed"
        )
    if is_wide(control):
        wide = (
            "The A/A control's interval is so wide that it checks nothing below"
            f" {difference_text(reach)}"
        )
        return f"{wide}: {control.baseline} against itself ({figures})"
    return f"A/A control: {control.baseline} against itself comes out equal ({figures})"


def farther_bound(control: RatioSummary) -> float:
    """The bound of a control's interval that is farther from 1."""
    assert control.ci_low is not None and control.ci_high is not None
    return max(control.ci_low, control.ci_high, key=as_factor)


def as_factor(ratio: float) -> float:
    """How far a ratio is from 1 either way: at least 1."""
    return max(ratio, 1 / ratio if ratio else math.inf)


def is_wide(control: RatioSummary) -> bool:
    """Whether the interval of a control is too wide to show that equal arms come out equal."""
    return control.role == "control" and (
        (control.ci_high or 0) > MAX_CONTROL_WIDTH * (control.ci_low or 0)
    )


def _control_by_case(controls: Sequence[RatioSummary]) -> str:
    """In how many cases the baseline comes out equal to itself, and in which not."""
    with_interval = [control for control in controls if control.ci_low is not None]
    if not with_interval:
        return "The A/A control gives no interval: nothing checks that equal arms come out equal"
    failed = [
        f"{control.case} {ratio(control.throughput_ratio)}"
        for control in with_interval
        if control.control_failed
    ]
    chance = percent(round(1 - with_interval[0].confidence, 6))
    if failed:
        named = ", ".join(failed[:MAX_NAMED]) + (", ..." if len(failed) > MAX_NAMED else "")
        return (
            f"The A/A control failed in {len(failed)} of {len(with_interval)} cases ({named};"
            f" {chance} of them would by chance), where no smaller difference is claimed"
        )
    wide = sum(map(is_wide, with_interval))
    but = f"; in {wide} of them its interval is too wide to check much" if wide else ""
    return (
        f"A/A control: {with_interval[0].baseline} against itself comes out equal in all"
        f" {len(with_interval)} cases{but}"
    )


def warnings(
    plan: Plan,
    arms: Sequence[ArmSummary],
    results: Sequence[RatioSummary],
    looks: Sequence[int],
) -> list[str]:
    """What a reader must know before believing the figures."""
    lines = []
    for arm in (arm for arm in arms if not arm.complete):
        is_ungated = arm.parity is None and not plan.are_scripts
        ungated = ", though no launch of it came to the parity gate" if is_ungated else ""
        lines.append(f"{arm.name} was interrupted; what it had measured counts{ungated}")
    for arm in arms:
        if arm.status not in ("ok", "not measured") and arm.launches:
            lost = len({error.launch for error in arm.errors})
            lines.append(
                f"{arm.name} {what_failed(arm)} in {count(lost, 'launch', 'launches')}; the others"
                " count"
            )
    cases = {
        result.case
        for result in results
        if result.case is not None and result.throughput_ratio is not None
    }
    interim = (
        f"Interim analyses: {len(looks)}, after {', '.join(map(str, looks))} launches, to decide"
        " whether to measure on; the intervals are wider for it"
    )
    return [
        *lines,
        *straggler_lines(arms),
        *stall_lines(arms),
        *core_lines(arms),
        *skipped_lines(arms),
        *script_lines(arms),
        *page_fault_lines(arms, freed_memory=plan.freed_memory),
        *by_speed_lines(results),
        *chance_lines(
            results, comparisons=len(cases), kind="cases", confidence=plan.measurement.confidence
        ),
        *run_lines(results),
        *[interim] * (len(looks) > 1),
        *caution_lines(results),
    ]


def by_speed_lines(results: Sequence[RatioSummary]) -> list[str]:
    """Ratios that move with the machine's speed; at another time they come out otherwise."""
    return [
        f"The ratio of {result.candidate} depends on the machine's speed, and may be another at"
        f" another time: {ratio(dependence.slower)} in the slower half of the launches,"
        f" {ratio(dependence.faster)} in the faster half. By the control, the fastest launch was"
        f" {difference_text(dependence.speeds)} faster than the slowest"
        for result in results
        if (dependence := result.by_speed) is not None
    ]


def chance_lines(
    results: Sequence[RatioSummary],
    *,
    comparisons: int,
    kind: Literal["cases", "points"],
    confidence: float,
) -> list[str]:
    """How many false verdicts to expect in a report of many comparisons, and how many verdicts it
    has.

    ``confidence``: with which the intervals of each hold together.
    """
    if comparisons < 2:
        return []
    claimed = sum(result.role == "candidate" and result.is_decided for result in results)
    return [
        f"Each of the {comparisons} {kind} is a comparison of its own at {percent(confidence)}"
        f" confidence: were there no difference anywhere, {comparisons * (1 - confidence):.2g} of"
        f" them would still be expected to show one. Verdicts of faster or slower here: {claimed}"
    ]
