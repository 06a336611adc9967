"""The sentences of a report: the answer first, and what weakens it; of a training to the end; and
of several points.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from measurement.plans.plan import Plan
from measurement.plans.settings import Batches
from reports.conclusions.machine import is_quiet
from reports.conclusions.scaling import units
from reports.conclusions.summaries import VERDICTS, Outcome, count_verdicts
from reports.conclusions.training_results import MIN_SEEDS
from reports.parts_schema import ArmTraining, TrainingSummary
from reports.reasons import REASONS
from reports.schema import ArmSummary, Comparison, RatioSummary
from reports.wording.causes import (
    cause_clause,
    caution_lines,
    core_wait_clause,
    more_words,
    most_words,
    verdict_word,
)
from reports.wording.disturbances import (
    by_speed_lines,
    core_lines,
    page_fault_lines,
    run_lines,
    script_lines,
    skipped_lines,
    stall_lines,
    straggler_lines,
)
from reports.wording.formatting import (
    count,
    difference_text,
    interval_words,
    listed,
    percent,
)

IN_BATCHES: dict[Batches, str] = {"own": "At each arm's own batch", "fit": "At equal memory"}
"""The condition of a verdict between arms of different batches."""
FAILURE_WORDS = {"failed": "failed", "wrong": "computes wrongly", "timeout": "ran out of time"}
"""What an arm did, by its status."""
MAX_LETTERS = 160
"""Characters of a message that are quoted in a sentence."""
NO_CONTROL = (
    "Training has no control: its unit is the seed, and every arm trained with the same ones"
)


def findings(results: Sequence[RatioSummary], arms: Sequence[ArmSummary], plan: Plan) -> list[str]:
    """One sentence per candidate, see ``in_order``."""
    candidates = [result for result in results if result.role == "candidate"]
    if any(result.case is not None for result in results):
        return _findings_by_case(candidates, arms, plan)
    ordered = in_order(candidates, plan.asked_arms())
    by_name = {arm.name: arm for arm in arms}
    return [
        finding(result, by_name[result.candidate], by_name[plan.baseline], plan)
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
    lines = [
        f"{name} against {plan.baseline}: {counts_words(outcomes)}"
        for name, outcomes in counts.items()
    ]
    for arm in arms:
        if arm.role == "candidate" and arm.name not in counts:
            missing = by_name[plan.baseline] if arm.blocks else arm
            lines.append(_no_timing(missing, arm.name, plan.baseline))
    return lines


def case_counts(
    arms: Sequence[ArmSummary], results: Sequence[RatioSummary]
) -> dict[str, Counter[Outcome]]:
    """The verdicts of each candidate that was timed, the one that is faster in most cases first."""
    counts = {arm.name: count_verdicts(arm, results) for arm in arms if arm.role == "candidate"}
    timed = {name: outcomes for name, outcomes in counts.items() if outcomes.keys() & {*VERDICTS}}
    return dict(sorted(timed.items(), key=lambda entry: entry[1]["slower"] - entry[1]["faster"]))


def counts_words(counts: Counter[Outcome]) -> str:
    """Such as ``faster in 12, slower in 5 of 17 cases; not offered: 9``."""
    measured = [f"{verdict} in {counts[verdict]}" for verdict in VERDICTS if counts[verdict]]
    total = sum(counts[verdict] for verdict in VERDICTS)
    parts = [f"{', '.join(measured)} of {count(total, 'case', 'cases')}"] if measured else []
    missing: tuple[Outcome, ...] = ("not offered", "no timing")
    return "; ".join(
        [*parts, *(f"{outcome}: {counts[outcome]}" for outcome in missing if counts[outcome])]
    )


def finding(result: RatioSummary, arm: ArmSummary, baseline: ArmSummary, plan: Plan) -> str:
    """The finding on one candidate, in one sentence."""
    ours, theirs = result.candidate, result.baseline
    if result.throughput_ratio is None:
        return _no_timing(arm if arm.throughput_per_s is None else baseline, ours, theirs)
    figures = f"({interval_words(result)})"
    match result.verdict:
        case "faster" | "slower":
            how = f"{difference_text(result.throughput_ratio)} {result.verdict}"
            verb = "looks" if result.is_unconfirmed else "is"
            note = f"; {result.note}" if result.note else ""
            why = cause_clause(result) + core_wait_clause(result, arm, baseline)
            return f"{ours} {verb} {how} than {theirs} {figures}{why}{note}"
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


def _undecided_clause(result: RatioSummary, *arms: ArmSummary) -> str:
    if result.withheld_by is None and result.more_range is not None:
        is_undisturbed = all(is_quiet(arm.load) for arm in arms)
        return f"; {more_words(result)} should decide" * is_undisturbed
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


def training_note(arm: ArmTraining, training: TrainingSummary) -> str | None:
    """Why an arm's accuracy cannot be compared with the reference's, or only without an
    interval.
    """
    if arm.caution is None:
        return None
    return REASONS[arm.caution].explanation.format(
        arm=arm.name, reference=training.reference, fewest=MIN_SEEDS
    )


def training_warnings(training: TrainingSummary) -> list[str]:
    """What a reader must know before believing the verdicts."""
    started = max((len(arm.by_seed) for arm in training.arms), default=0)
    return [
        f"{arm.name} trained to the end with {arm.seeds} of {count(started, 'seed')}"
        for arm in training.arms
        if arm.seeds < started
    ]


def scaling_sentences(points: Sequence[Comparison], plan: Plan) -> list[str]:
    """One sentence on each arm: how it scales."""
    return [line for name in plan.arms if (line := scaling_sentence(points, name))]


def bases(study: Comparison) -> list[str]:
    """What each arm's scaling is relative to, a line for each such base."""
    base_of_arm = {
        arm.name: arm.scaling_baseline for arm in study.arms_anywhere if arm.scaling_baseline
    }
    by_base: dict[str, list[str]] = {}
    for arm, base in base_of_arm.items():
        by_base.setdefault(base, []).append(arm)
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


def study_warnings(points: Sequence[Comparison], plan: Plan) -> list[str]:
    """What a reader must know before believing the figures, point by point."""
    lines = [f"{point.name}: {line}" for point in points for line in _point_warnings(point)]
    timed = [
        (point.name, result)
        for point in points
        for result in point.results
        if result.throughput_ratio is not None
    ]
    return lines + chance_lines(
        [result for _, result in timed],
        comparisons=len({place for place, _ in timed}),
        kind="points",
        confidence=plan.measurement.confidence,
    )


def _point_warnings(point: Comparison) -> list[str]:
    failures = [
        f"{arm.name} {what_failed(arm)}: {first_line(arm.errors[0].message)}"
        for arm in point.arms
        if arm.has_failed and arm.errors
    ]
    is_control_failed = any(result.control_failed for result in point.results)
    return [
        *point.elsewhere,
        *([first_line(point.cause)] if point.cause else failures),
        *["the control failed, see its own report"] * is_control_failed,
        *run_lines(point.results),
        *caution_lines(point.results),
    ]
