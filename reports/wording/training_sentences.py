"""The sentences on training to the end: which arms converge like the reference, and which reaches
the target first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

from reports.conclusions.training_results import MIN_SEEDS
from reports.parts_schema import ArmTraining, Convergence, TrainingSummary
from reports.reasons import REASONS
from reports.wording.formatting import (
    accuracy,
    count,
    percent,
    points,
    seconds,
)

MAX_NAMED = 3
"""Arms that a clause names."""
NO_CONTROL = (
    "Training has no control: its unit is the seed, and every arm trained with the same ones"
)


def training_note(arm: ArmTraining, training: TrainingSummary) -> str | None:
    """Why an arm's accuracy cannot be compared with the reference's, or only without an
    interval.
    """
    if arm.caution is None:
        return None
    return REASONS[arm.caution].explanation.format(
        arm=arm.name, reference=training.reference, fewest=MIN_SEEDS
    )


def training_clauses(training: TrainingSummary) -> list[str]:
    """Who converges, then who is at the target first: the clauses of a headline."""
    clauses = _convergence(training, accuracy(training.arm(training.reference).final_top1))
    target = training.settings.target_accuracy
    reached = _by_time(training)
    if target is None or not reached:
        return clauses
    first, *others = reached
    soon = seconds(times_to_target(training)[1][first.name])
    if not others:
        clauses.append(f"{first.name} reaches {percent(target)} in {soon}")
    elif _is_first(first, others, baseline=training.baseline):
        clauses.append(f"{first.name} reaches {percent(target)} first, in {soon}")
    else:
        clauses.append(f"which arm reaches {percent(target)} first is undecided")
    return clauses


def times_to_target(training: TrainingSummary) -> tuple[str, dict[str, float]]:
    """Over seeds, by arm that reaches the target with most of them: the geometric mean, of which
    the verdict's ratios are; the median where an arm misses the target with any seed.
    """
    reached = [arm for arm in training.arms if arm.time_to_accuracy_s is not None]
    means = {arm.name: arm.time_to_train_s.value for arm in reached if arm.time_to_train_s}
    if len(means) == len(reached):
        return "geometric mean", means
    return "median", {arm.name: arm.time_to_accuracy_s or math.inf for arm in reached}


def _by_time(training: TrainingSummary) -> list[ArmTraining]:
    """Arms that reach the target with most seeds, the soonest first."""
    times = times_to_target(training)[1]
    return [training.arm(name) for name in sorted(times, key=lambda name: times[name])]


def _is_first(first: ArmTraining, others: Sequence[ArmTraining], *, baseline: str) -> bool:
    """Whether the interval of an arm's time over the baseline's ends below all others'; the
    baseline's own is 1.
    """
    bounds = [
        (1.0, 1.0) if arm.name == baseline else arm.time_ratio.bounds if arm.time_ratio else None
        for arm in (first, *others)
    ]
    first_bounds, *theirs = bounds
    return first_bounds is not None and all(
        other is not None and first_bounds[1] < other[0] for other in theirs
    )


def _convergence(training: TrainingSummary, figures: str) -> list[str]:
    """Which arms miss the reference's accuracy, which reach it, and for which that is undecided."""
    reference = training.arm(training.reference)
    others = [arm for arm in training.arms if arm.name != training.reference]
    if not others:
        return [f"{reference.name} trained alone ({figures})"]
    by_verdict = {
        verdict: [arm for arm in others if arm.convergence == verdict]
        for verdict in get_args(Convergence)
    }
    clauses = {
        verdict: f"{_names(arms)} {_reach(arms)}" for verdict, arms in by_verdict.items() if arms
    }
    parts = []
    if arms := by_verdict["differs"]:
        each = ", ".join(f"{arm.name} ({points(arm.difference)} percentage points)" for arm in arms)
        parts.append(
            f"{each if len(arms) < MAX_NAMED else _names(arms)} {_reach(arms)} another accuracy"
            " than"
        )
    if arms := by_verdict["same"]:
        are_all = len(arms) == len(others) > 1
        parts.append(
            "All arms reach the same accuracy as"
            if are_all
            else f"{clauses['same']} the same accuracy as"
        )
    if arms := by_verdict["undecided"]:
        reasons = dict.fromkeys(arm.note for arm in arms if arm.note)
        why = f", since {next(iter(reasons))}," if len(reasons) == 1 else ""
        parts.append(f"It is undecided{why} whether {clauses['undecided']} the same accuracy as")
    sentences = [f"{words} {reference.name}" for words in parts]
    return (
        [f"{sentences[0]} ({figures})", *sentences[1:]]
        if sentences
        else [f"No arm can be compared with {reference.name} ({figures})"]
    )


def training_finding(training: TrainingSummary) -> str:
    """Who ends with the reference's accuracy; times and differences stand in the table."""
    reference = training.arm(training.reference)
    figures = (
        f"{accuracy(reference.final_top1)} of held-out samples, {count(reference.seeds, 'seed')}"
        if reference.final_top1
        else "no accuracy"
    )
    return "; ".join(_convergence(training, figures))


def unpaired_note(arm: ArmTraining) -> str:
    """Why the ratio of times has no interval; empty where it has one."""
    return (
        f"time compared with {count(arm.time_pairs, 'seed')}; with {arm.time_unpaired} one of the"
        " two did not reach it, so there is no interval"
        if arm.time_unpaired
        else ""
    )


def training_warnings(training: TrainingSummary) -> list[str]:
    """What a reader must know before believing the verdicts."""
    started = max((len(arm.by_seed) for arm in training.arms), default=0)
    return [
        f"{arm.name} trained to the end with {arm.seeds} of {count(started, 'seed')}"
        for arm in training.arms
        if arm.seeds < started
    ]


def _names(arms: Sequence[ArmTraining]) -> str:
    return ", ".join(arm.name for arm in arms) if len(arms) <= MAX_NAMED else f"{len(arms)} arms"


def _reach(arms: Sequence[ArmTraining]) -> str:
    return "reaches" if len(arms) == 1 else "reach"
