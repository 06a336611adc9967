"""Training to the end, in numbers: curves, final accuracies beside the reference's, times to accuracy.

Pure: a plan and its records in, a ``TrainingSummary`` out.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from fractions import Fraction

from measurement.plans.plan import Plan
from measurement.plans.settings import EpochRecord, Quantity, TrainingSettings
from measurement.records.record import LaunchRecord
from reports.estimate import Estimate
from reports.statistics.seeds import FEWEST, converges, geometric_mean, median_time, ratio_interval, t_interval
from reports.training_schema import QUANTITIES, ArmTraining, Band, MeanCurve, SeedCurve, TrainingSummary

EpochsByLaunch = dict[int, list[EpochRecord]]
"""By launch, which is by seed."""


def summarise_training(plan: Plan, records: Sequence[LaunchRecord]) -> TrainingSummary | None:
    """How every arm of the plan converges; None in a plan without ``training``.

    Launches that are not ok do not count, nor does an arm that was ever wrong.
    """
    if plan.training is None:
        return None
    wrong = {record.arm for record in records if record.status == "wrong"}
    good = [record for record in records if record.status == "ok" and record.arm not in wrong]
    epochs = {arm: {record.launch: record.epochs for record in good if record.arm == arm} for arm in plan.compared_arms()}
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


def _arm(plan: Plan, training: TrainingSettings, name: str, epochs: dict[str, EpochsByLaunch], reference: str) -> ArmTraining:
    finished = {arm: _finished(training, trainings) for arm, trainings in epochs.items()}
    own, confidence = finished[name], plan.measurement.confidence
    curves = [_curve(plan, launch, epochs[name][launch], finished=launch in own) for launch in sorted(epochs[name])]
    times = {launch: training.time_to_accuracy_s(trained) for launch, trained in own.items()}
    final = [accuracy for launch in sorted(own) if (accuracy := _final_top1(own[launch])) is not None]
    arm = ArmTraining(
        name=name,
        seeds=len(own),
        final_top1=t_interval(final, confidence=confidence),
        times_to_accuracy_s=[times[launch] for launch in sorted(times)],
        seeds_reached=sum(time is not None for time in times.values()),
        time_to_accuracy_s=median_time(list(times.values())),
        time_to_train_s=_time_to_train(training, list(own.values()), confidence),
        epoch_share=_epoch_share(training, own.values()),
        curve=_mean_curve(curves),
        by_seed=curves,
    )
    if name != plan.baseline:
        _compare_times(arm, training, own, finished[plan.baseline], confidence)
    if name != reference:
        _compare_accuracies(arm, own, finished[reference], training.accuracy_margin, confidence)
    return arm


def _time_to_train(training: TrainingSettings, trainings: Sequence[Sequence[EpochRecord]], confidence: float) -> Estimate | None:
    if training.target_accuracy is None:
        times: list[float | None] = [math.fsum(epoch.train_s for epoch in epochs) for epochs in trainings]
    else:
        times = [training.time_to_accuracy_s(epochs) for epochs in trainings]
    known = [time for time in times if time is not None]
    return geometric_mean(known, confidence=confidence) if len(known) == len(times) else None


def _finished(training: TrainingSettings, trainings: EpochsByLaunch) -> EpochsByLaunch:
    """The launches that trained to their end."""
    return {launch: epochs for launch, epochs in trainings.items() if _is_finished(training, epochs)}


def _is_finished(training: TrainingSettings, epochs: Sequence[EpochRecord]) -> bool:
    stopped = training.stop_at_target and bool(epochs) and training.is_reached(epochs[-1])
    return stopped or len(epochs) == training.epochs


def _final_top1(epochs: Sequence[EpochRecord]) -> Fraction | None:
    last = epochs[-1]
    return Fraction(last.held_out_top1, last.held_out_count) if last.held_out_count else None


def _compare_accuracies(arm: ArmTraining, ours: EpochsByLaunch, theirs: EpochsByLaunch, margin: float, confidence: float) -> None:
    """Set the difference to the reference, from the seeds with which both trained to the end."""
    pairs = [(_final_top1(ours[launch]), _final_top1(theirs[launch])) for launch in sorted(ours.keys() & theirs.keys())]
    differences = [mine - its for mine, its in pairs if mine is not None and its is not None]
    arm.pairs = len(differences)
    arm.difference = t_interval(differences, confidence=confidence)
    arm.convergence = converges(arm.difference, margin=margin)
    if pairs and not differences:
        arm.caution = "nothing held out"
    elif not differences:
        arm.caution = "no common seed"
    elif len(differences) < FEWEST:
        arm.caution = "few seeds"


def _compare_times(
    arm: ArmTraining, training: TrainingSettings, ours: EpochsByLaunch, theirs: EpochsByLaunch, confidence: float
) -> None:
    """Set the ratio to the baseline, from the seeds with which both reached the target."""
    launches = sorted(ours.keys() & theirs.keys())
    times = [(training.time_to_accuracy_s(ours[launch]), training.time_to_accuracy_s(theirs[launch])) for launch in launches]
    both = [(mine, its) for mine, its in times if mine and its]
    arm.time_pairs, arm.time_unpaired = len(both), len(times) - len(both)
    arm.time_ratio = ratio_interval([mine for mine, _ in both], [its for _, its in both], confidence=confidence)
    if arm.time_ratio is not None and arm.time_unpaired:
        arm.time_ratio = Estimate(value=arm.time_ratio.value)


def _epoch_share(training: TrainingSettings, trainings: Iterable[Sequence[EpochRecord]]) -> float | None:
    """The median over seeds of the last epoch's part of the time to accuracy."""
    shares = []
    for epochs in trainings:
        until = training.time_to_accuracy_s(epochs)
        if until:
            shares.append(next(epoch for epoch in epochs if training.is_reached(epoch)).train_s / until)
    return statistics.median(shares) if shares else None


def _curve(plan: Plan, launch: int, epochs: Sequence[EpochRecord], *, finished: bool) -> SeedCurve:
    return SeedCurve(
        launch=launch,
        seed=plan.seed + launch,
        finished=finished,
        train_s=list(itertools.accumulate(epoch.train_s for epoch in epochs)),
        figures={quantity: [_figure(quantity, epoch) for epoch in epochs] for quantity in QUANTITIES},
    )


def _figure(quantity: Quantity, epoch: EpochRecord) -> float | None:
    """An epoch's value; None where it is unknown or not finite."""
    value = epoch.figures().get(quantity)
    return value if value is not None and math.isfinite(value) else None


def _mean_curve(curves: Sequence[SeedCurve]) -> MeanCurve | None:
    """Epoch by epoch the mean of the seeds that trained that long; None before any epoch."""
    length = max((len(curve.train_s) for curve in curves), default=0)
    if not length:
        return None
    so_long = [[curve for curve in curves if len(curve.train_s) > epoch] for epoch in range(length)]
    bands = {
        quantity: _band([[curve.figures[quantity][epoch] for curve in present] for epoch, present in enumerate(so_long)])
        for quantity in QUANTITIES
    }
    return MeanCurve(
        seeds=[len(present) for present in so_long],
        train_s=[_mean([curve.train_s[epoch] for curve in present]) for epoch, present in enumerate(so_long)],
        bands={quantity: band for quantity, band in bands.items() if any(value is not None for value in band.mean)},
    )


def _band(by_epoch: Sequence[Sequence[float | None]]) -> Band:
    known = [[value for value in values if value is not None] for values in by_epoch]
    whole = [values if len(values) == len(all_) else [] for values, all_ in zip(known, by_epoch, strict=True)]
    return Band(
        mean=[_mean(values) if values else None for values in whole],
        low=[min(values, default=None) for values in whole],
        high=[max(values, default=None) for values in whole],
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
