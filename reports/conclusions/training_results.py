"""Training to the end, in numbers: curves, final accuracies beside the reference's, times to
accuracy.

Arms of one seed begin with the same weights and see the same samples in the same order. Only the
order of summation differs, and what that grows into. So arms are compared seed by seed, never mean
by mean.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pandas as pd

from measurement.plans.plan import Plan
from measurement.plans.settings import EpochRecord, Quantity, TrainingSettings
from measurement.records.record import LaunchRecord
from reports.conclusions.steps import columns, counting
from reports.parts_schema import (
    QUANTITIES,
    ArmTraining,
    Band,
    Convergence,
    Estimate,
    MeanCurve,
    NoDifference,
    SeedCurve,
    TrainingSummary,
)
from reports.statistics.student import log_interval, t_interval

EpochsByLaunch = dict[int, list[EpochRecord]]
"""By launch, which is by seed."""
MIN_SEEDS = 3
"""Seeds that an interval is made from. Two that happen to agree, as accuracies counted in samples
do, would make a certainty."""


def summarise_training(plan: Plan, records: Sequence[LaunchRecord]) -> TrainingSummary | None:
    """How every arm of the plan converges; None in a plan without ``training``.

    Launches that are not ok do not count, nor does an arm that was ever wrong.
    """
    if plan.training is None:
        return None
    epochs: dict[str, EpochsByLaunch] = {name: {} for name in plan.compared_arms()}
    for record in sorted(counting(records), key=lambda record: record.launch):
        epochs[record.arm][record.launch] = record.epochs
    reference = reference_of(plan)
    return TrainingSummary(
        settings=plan.training,
        reference=reference,
        baseline=plan.baseline,
        confidence=plan.measurement.confidence,
        arms=[_arm(plan, plan.training, name, epochs, reference) for name in plan.compared_arms()],
    )


def reference_of(plan: Plan) -> str:
    """The arm of a single process, which exchanges nothing; where there is none, the baseline."""
    alone = [name for name, arm in plan.compared_arms().items() if arm.backend == "single"]
    return plan.baseline if plan.baseline in alone or not alone else alone[0]


def _arm(
    plan: Plan,
    training: TrainingSettings,
    name: str,
    epochs: dict[str, EpochsByLaunch],
    reference: str,
) -> ArmTraining:
    finished = {
        arm: {n: trained for n, trained in trainings.items() if len(trained) == training.epochs}
        for arm, trainings in epochs.items()
    }
    of_arm, confidence = finished[name], plan.measurement.confidence
    compared: dict[str, Any] = {}
    if name != plan.baseline:
        compared = _times_compared(training, of_arm, finished[plan.baseline], confidence)
    if name != reference:
        compared |= _accuracies_compared(
            of_arm, finished[reference], plan.measurement.noise_threshold, confidence=confidence
        )
    curves = [
        _curve(plan, launch, trained, finished=launch in of_arm)
        for launch, trained in epochs[name].items()
    ]
    times = [training.time_to_accuracy_s(trained) for trained in of_arm.values()]
    # a seed that does not reach the target is later than all that do
    median = statistics.median(math.inf if time is None else time for time in times or [None])
    spent = times
    if training.target_accuracy is None:
        spent = [math.fsum(epoch.train_s for epoch in trained) for trained in of_arm.values()]
    known = [time for time in spent if time is not None]
    final = [
        accuracy for trained in of_arm.values() if (accuracy := _final_top1(trained)) is not None
    ]
    return ArmTraining(
        name=name,
        seeds=len(of_arm),
        final_top1=t_interval(final, confidence=confidence, fewest=MIN_SEEDS),
        seeds_reached=sum(time is not None for time in times),
        time_to_accuracy_s=median if math.isfinite(median) else None,
        time_to_train_s=None if None in spent else geometric_mean(known, confidence=confidence),
        curve=_mean_curve(curves),
        by_seed=curves,
        **compared,
    )


def geometric_mean(values: Sequence[float], *, confidence: float) -> Estimate | None:
    """The geometric mean over seeds of positive values, with Student's interval of their
    logarithms; None without any.
    """
    logs = [math.log(value) for value in values]
    return (
        log_interval(math.exp(statistics.mean(logs)), logs, confidence=confidence, fewest=MIN_SEEDS)
        if logs
        else None
    )


def _final_top1(epochs: Sequence[EpochRecord]) -> Fraction | None:
    last = epochs[-1]
    return Fraction(last.held_out_top1, last.held_out_count) if last.held_out_count else None


def _accuracies_compared(
    ours: EpochsByLaunch, theirs: EpochsByLaunch, margin: float, *, confidence: float
) -> dict[str, Any]:
    """Fields of ``ArmTraining``: the difference to the reference, from the seeds with which both
    trained to the end.
    """
    pairs = [
        (_final_top1(ours[launch]), _final_top1(theirs[launch]))
        for launch in ours
        if launch in theirs
    ]
    differences = [mine - its for mine, its in pairs if mine is not None and its is not None]
    difference = t_interval(differences, confidence=confidence, fewest=MIN_SEEDS)
    caution: NoDifference | None = None
    if not differences:
        caution = "nothing held out" if pairs else "no common seed"
    elif len(differences) < MIN_SEEDS:
        caution = "few seeds"
    return {
        "pairs": len(differences),
        "difference": difference,
        "convergence": converges(difference, margin=margin),
        "caution": caution,
    }


def converges(difference: Estimate | None, *, margin: float) -> Convergence:
    """Whether two arms come to the same accuracy.

    'same' where the interval of their difference lies within ±margin, 'differs' where it does not
    and excludes 0, else 'undecided'.
    """
    if difference is None or difference.bounds is None:
        return "undecided"
    low, high = difference.bounds
    if -margin <= low and high <= margin:
        return "same"
    return "differs" if difference.excludes(0.0) else "undecided"


def _times_compared(
    training: TrainingSettings, ours: EpochsByLaunch, theirs: EpochsByLaunch, confidence: float
) -> dict[str, Any]:
    """Fields of ``ArmTraining``: the ratio to the baseline, from the seeds with which both reached
    the target.
    """
    times = [
        (training.time_to_accuracy_s(ours[launch]), training.time_to_accuracy_s(theirs[launch]))
        for launch in ours
        if launch in theirs
    ]
    ratios = [mine / its for mine, its in times if mine and its]
    unpaired = len(times) - len(ratios)
    ratio = geometric_mean(ratios, confidence=confidence)
    if ratio is not None and unpaired:
        ratio = Estimate(value=ratio.value)
    return {"time_pairs": len(ratios), "time_unpaired": unpaired, "time_ratio": ratio}


def _curve(plan: Plan, launch: int, epochs: Sequence[EpochRecord], *, finished: bool) -> SeedCurve:
    figures = [epoch.figures() for epoch in epochs]
    return SeedCurve(
        launch=launch,
        seed=plan.seed + launch,
        finished=finished,
        train_s=list(itertools.accumulate(epoch.train_s for epoch in epochs)),
        figures={
            quantity: [
                value if value is not None and math.isfinite(value) else None
                for value in (values.get(quantity) for values in figures)
            ]
            for quantity in QUANTITIES
        },
    )


def _mean_curve(curves: Sequence[SeedCurve]) -> MeanCurve | None:
    """Epoch by epoch the mean of the seeds that trained that long; None before any epoch."""
    times = pd.DataFrame(
        {curve.launch: pd.Series(curve.train_s, dtype="float64") for curve in curves}
    )
    if not times.size:
        return None
    seeds = times.count(axis="columns")
    bands: dict[Quantity, Band] = {}
    for quantity in QUANTITIES:
        values = pd.DataFrame(
            {curve.launch: pd.Series(curve.figures[quantity], dtype="float64") for curve in curves}
        )
        known = values[values.count(axis="columns") == seeds]
        if len(known):
            table = known.agg(["mean", "min", "max"], axis="columns").reindex(times.index)
            names = list(Band.model_fields)
            bands[quantity] = Band(**columns(table.set_axis(names, axis="columns"), names))
    by_epoch = times.mean(axis="columns")
    return MeanCurve(seeds=seeds.tolist(), train_s=by_epoch.tolist(), bands=bands)
