"""The sentences on training to the end: which arms converge like the reference, and which reaches
the target first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.conclusions.training_results import MIN_SEEDS
from reports.parts_schema import ArmTraining, Convergence, TrainingSummary
from reports.reasons import REASONS
from reports.wording.formatting import (
    accuracy,
    count,
    percent,
    seconds,
)

MAX_NAMED = 3
"""Arms that a clause names."""
CONVERGENCE: dict[Convergence, str] = {
    "differs": "another accuracy than",
    "same": "the same accuracy as",
    "undecided": "accuracy undecided beside",
}
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
    clauses = convergence_clauses(training)
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


def convergence_clauses(training: TrainingSummary) -> list[str]:
    """Which arms miss the reference's accuracy, which reach it, and for which that is undecided."""
    reference = training.arm(training.reference)
    beside = f"{reference.name} ({accuracy(reference.final_top1)})"
    if len(training.arms) == 1:
        return [f"{reference.name} trained alone ({accuracy(reference.final_top1)})"]
    clauses = []
    for verdict, lead in CONVERGENCE.items():
        arms = [arm for arm in training.arms if arm.convergence == verdict]
        names = (
            ", ".join(arm.name for arm in arms) if len(arms) <= MAX_NAMED else f"{len(arms)} arms"
        )
        reasons = {arm.note for arm in arms}
        why = f", since {reasons.pop()}" if len(reasons) == 1 and None not in reasons else ""
        clauses += [f"{lead} {beside}: {names}{why}"] if arms else []
    first, *others = clauses or [f"no arm can be compared with {beside}"]
    return [first[0].upper() + first[1:], *others]


def training_warnings(training: TrainingSummary) -> list[str]:
    """What a reader must know before believing the verdicts."""
    started = max((len(arm.by_seed) for arm in training.arms), default=0)
    return [
        f"{arm.name} trained to the end with {arm.seeds} of {count(started, 'seed')}"
        for arm in training.arms
        if arm.seeds < started
    ]
