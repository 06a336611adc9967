"""What an arm must pass for its timing to count: the same conditions as the other arms, correct
gradients, the same work.

The parity gate builds its own models. The memory that they leave to the process spares later steps
page faults, which a user's training has (docs/decisions/0010). So blocks are timed before the gate.
A training to the end comes after it, since hours may be lost there. So do a micro-benchmark's
cases, since the gate says which of them an arm offers.

Ranks report what they computed. Their reports are judged here: does an arm compute correctly, do
two arms compute the same, do ranks drift apart? ``measurement.distances`` has the distances of
tensors and the tolerances for rounding. This module reads the reports and words the differences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from measurement.conditions.differences import arm_differences, own_work
from measurement.distances import (
    EXACT,
    FLOAT32,
    ROUNDING,
    Distances,
    Sketches,
    TensorChange,
    Tensors,
    rounding_of,
    step_distances,
)
from measurement.errors import joined, shortened
from measurement.plans.sections import Measurement
from measurement.rank_agreement import RANK_TOLERANCE, distances_to_first, rank_gradient_distances
from measurement.records.record import GATE_STEPS, ParityResult
from runners.protocol import (
    CheckReport,
    DriftReport,
    GateCommand,
    GateReply,
    ParityReport,
)
from runners.session.arm_run import ArmRun
from runners.session.diagnosis import ArmFailed

GATE_RUNS = 3
"""How many blocks' time the gate may take: each of its runs makes a workload, which loads its data
again."""
DRIFT_REMEDY = (
    "every rank must take the same steps: no schedule may follow a rank's own loss, and parameters"
    " may not differ between averages"
)
MAX_FAILURES = 8
MAX_TENSORS = 3
"""Tensors that a message names; of the others it has the number."""


def run_gates(
    arms: Sequence[ArmRun],
    *,
    compared: Sequence[ArmRun],
    measurement: Measurement,
    after_blocks: bool,
) -> None:
    """Let each arm take the parity gate, then compare the work of all ``compared`` arms.

    Arms that fail do not count.
    """
    for arm in arms:
        arm.run_unless_failed(
            partial(_pass_gate, measurement=measurement, after_blocks=after_blocks)
        )
    for first, arm in _with_reference(compared):
        if first.record.world_size == arm.record.world_size:
            try:
                _compare_work(first, arm)
            except ArmFailed as failed:
                arm.fail(failed)


def require_together(reports: Sequence[DriftReport | None]) -> None:
    """Raise ``ArmFailed`` if an arm's ranks have drifted apart in the measured steps; reports by
    rank.
    """
    drift = drift_between(reports)
    if drift:
        raise ArmFailed(drift, status="wrong")


def compare_conditions(arms: Sequence[ArmRun]) -> None:
    """Fail each arm whose versions, cores, threads or seeds differ from the first one's, unless the
    plan allows it.
    """
    for first, arm in _with_reference(arms):
        has_own_work = own_work([first.record, arm.record])
        refused = [
            row.sentence
            for row in arm_differences([first.conditions, arm.conditions])
            if not (row.allowed or (row.changes_work and has_own_work))
        ]
        if refused:
            arm.fail(ArmFailed(f"not comparable with {first.record.arm}: {'; '.join(refused)}"))


def _pass_gate(arm: ArmRun, *, measurement: Measurement, after_blocks: bool) -> None:
    arm.say(f"checking {arm.session.name}")
    command = GateCommand(after_blocks=after_blocks, counts_flops=arm.record.launch == 0)
    done = arm.session.exchange(
        command, GateReply, timeout_s=GATE_RUNS * measurement.block_timeout_s
    )
    reports = [reply.report for reply in done.replies]
    arm.gate = reports[0] if isinstance(reports[0], ParityReport) else None
    arm.record.flops = arm.gate.flops if arm.gate else None
    arm.record.parity, arm.record.not_offered = judge_gate(reports)
    if not arm.record.parity.passed:
        raise ArmFailed("; ".join(arm.record.parity.failures), status="wrong")


def _with_reference(arms: Sequence[ArmRun]) -> Iterator[tuple[ArmRun, ArmRun]]:
    """Every arm that is ok, each after its reference: the baseline if possible.

    An arm with another number of ranks has the first arm of as many ranks as reference, since these
    must agree in more.
    """
    passing = sorted(
        (arm for arm in arms if arm.record.status == "ok"),
        key=lambda arm: arm.record.role != "baseline",
    )
    firsts: dict[int, ArmRun] = {}
    for arm in passing:
        first = firsts.setdefault(arm.record.world_size, arm)
        if first is arm:
            first = passing[0]
        if first is not arm:
            yield first, arm


def _compare_work(first: ArmRun, arm: ArmRun) -> None:
    """Fail an arm whose samples or state in the gate differ from those of an arm of as many ranks.

    If an arm has its own workload, differences are noted and are no failure.
    """
    expected, parity, name = first.record.parity, arm.record.parity, first.record.arm
    if expected is None or parity is None:
        return
    has_own_work = bool(own_work([first.record, arm.record]))
    if has_own_work and first.gate and arm.gate and _shapes(first.gate) != _shapes(arm.gate):
        arm.record.unlike_work["model.tensors"] = (
            f"its parameters and buffers have other names or sizes than {name}'s"
        )
        return
    compared, failures = "samples", list[str]()
    if parity.samples_digest != expected.samples_digest:
        failures = [f"consumed other samples than {name}"]
    elif first.gate and arm.gate:
        state = compare_state(first.gate, arm.gate, first_arm=name)
        compared, failures = "state", state.failures
        parity.compared_with, parity.state_distance = name, state.distance
        parity.notes += [note for note in state.notes if note not in parity.notes]
    if failures and has_own_work:
        arm.record.unlike_work[compared] = "; ".join(failures)
    elif failures:
        parity.passed, parity.failures = False, failures
        raise ArmFailed("; ".join(failures), status="wrong")


def _shapes(report: ParityReport) -> dict[str, int]:
    return {name: report.sizes[name] for name in report.started}


def drift_between(reports: Sequence[DriftReport | None]) -> str | None:
    """Say how ranks have drifted apart; None if they have not.

    Reports by rank; None for a rank that trains nothing.
    """
    trained = [report for report in reports if report is not None]
    differences = (
        [*_unlike_hyperparameters(trained), *_unlike_parameters(trained)]
        if len(trained) > 1
        else []
    )
    return (
        f"ranks have drifted apart: {'; '.join(differences)} ({DRIFT_REMEDY})"
        if differences
        else None
    )


def _unlike_hyperparameters(reports: Sequence[DriftReport]) -> Iterator[str]:
    for name, values in reports[0].hyperparameters.items():
        ranks = zip(*(report.hyperparameters.get(name, values) for report in reports), strict=False)
        for each in ranks:
            if not np.allclose(each, each[0], rtol=RANK_TOLERANCE, atol=0, equal_nan=True):
                yield f"{name} {', '.join(f'{value:g}' for value in dict.fromkeys(each))}"
                break


def _unlike_parameters(reports: Sequence[DriftReport]) -> Iterator[str]:
    first = reports[0].parameters
    distances = distances_to_first(
        [{**first, **report.parameters} for report in reports[1:]], first, tolerance=RANK_TOLERANCE
    )
    if beyond := distances.names_beyond():
        yield (
            f"parameters {shortened(sorted(beyond, key=list(first).index))}, by up to"
            f" {distances.worst:.2g} of their size"
        )


@dataclass(frozen=True, kw_only=True)
class StateComparison:
    """The comparison of two arms' parameters, buffers and optimizer state after the gate's
    steps.
    """

    distance: float | None = None
    """The largest distance of a tensor, relative to its change by the steps; None: not compared."""
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def judge_gate(
    reports: Sequence[ParityReport | CheckReport],
) -> tuple[ParityResult, dict[str, str]]:
    """Judge all ranks' reports, by rank: the verdict, and by name why cases of a micro-benchmark
    are not offered.
    """
    parity = [report for report in reports if isinstance(report, ParityReport)]
    if parity:
        return judge_parity(parity), {}
    checks = [report for report in reports if isinstance(report, CheckReport)]
    failures = [
        f"rank {rank}: {failure}"
        for rank, report in enumerate(checks)
        for failure in report.failures
    ]
    return (
        ParityResult(passed=not failures, failures=_shown(failures)),
        checks[0].not_offered,
    )


def _shown(failures: list[str], *, most: int = MAX_FAILURES) -> list[str]:
    more = len(failures) - most
    return failures[:most] + ([f"and {more} more"] if more > 0 else [])


def judge_parity(reports: list[ParityReport]) -> ParityResult:
    """Judge the parity of an arm; reports by rank."""
    first = reports[0]
    started = distances_to_first([report.started for report in reports], first.wanted)
    ended = distances_to_first(
        [report.ended for report in reports], first.ended, started=first.started
    )
    failures = _same_samples(reports)
    failures += [
        f"rank {r}: '{name}' differs from rank 0's by {e:.2g} (relative) after prepare()"
        for r, name, e in started.beyond()
    ]
    notes = (
        [f"not compared, since it cannot be put in numbers: {joined(first.not_compared)}"]
        if first.not_compared
        else []
    )
    if not first.samples:
        notes.append("samples not compared: the batches hold no tensors")
    gradients: Distances | None = None
    if first.gradient_scale is None:
        notes.append(
            "gradients not compared: its exchange does not compute the mean of the ranks' gradients"
        )
    else:
        gradients = _against_mean(reports, scale=first.gradient_scale)
        failures += [
            f"rank {r}: gradient of '{name}' is off by {e:.2g} (relative L2, tolerance"
            f" {first.tolerances.get(name, EXACT):g})"
            for r, name, e in gradients.beyond()
        ]
    drifted = drift_between([report.drift for report in reports])
    if drifted:
        failures.insert(0, drifted)
    else:
        failures += [
            f"rank {r}: '{name}' is {e:.2g} (relative) from rank 0's after {GATE_STEPS} steps"
            for r, name, e in ended.beyond()
        ]
    return ParityResult(
        passed=not failures,
        failures=_shown(failures),
        gradient_error=gradients.worst if gradients else None,
        parameter_spread=ended.worst,
        tolerance=max(first.tolerances.values(), default=EXACT),
        notes=notes,
        samples_digest=hashlib.sha256(
            "".join(report.samples for report in reports).encode()
        ).hexdigest()[:16],
    )


def _same_samples(reports: list[ParityReport]) -> list[str]:
    seen: dict[str, int] = {}
    failures = []
    for rank, report in enumerate(reports):
        first = seen.setdefault(report.samples, rank)
        if report.samples and first != rank:
            failures.append(
                f"ranks {first} and {rank} consumed the same samples: the shards are not disjoint"
            )
    return failures


def _against_mean(reports: list[ParityReport], *, scale: float) -> Distances:
    """Compare every rank's synchronised gradients with the scaled mean of all ranks' local
    gradients.
    """
    first = reports[0]
    local = Sketches.of(first.local)
    table, lengths = np.zeros_like(local.table), np.zeros(len(local.names))
    for report in reports:  # one at a time: a thousand take tens of megabytes
        sketches = Sketches.of(report.local, local.names)
        table += sketches.table
        lengths += sketches.norms
    return rank_gradient_distances(
        [report.synced for report in reports],
        Sketches(names=local.names, table=scale * table / len(reports)),
        rounding=scale * rounding_of(local, first.sizes, FLOAT32, tried=first.noise),
        tolerances=np.array([first.tolerances.get(name, EXACT) for name in local.names]),
        usual=scale * lengths / len(reports),
    )


def compare_state(first: ParityReport, other: ParityReport, *, first_arm: str) -> StateComparison:
    """Compare two arms' states after the gate's steps, by the reports of their ranks 0."""
    if first.in_some_steps and first.steps_zeros != other.steps_zeros:
        note = (
            f"state not compared with {first_arm}'s: {shortened(first.in_some_steps)} take part in"
            " some steps only; one library steps zeros then, the other leaves them as they are"
        )
        return StateComparison(notes=[note])
    firsts, others = _state(first), _state(other)
    notes = [
        f"{kind} not all compared with {first_arm}'s: one of both does not keep it, or not for all"
        " parameters"
        for kind in sorted(firsts.keys() | others.keys())
        if firsts.get(kind, {}).keys() != others.get(kind, {}).keys()
    ]
    missing = {*first.without_gradient, *other.without_gradient}
    if missing:
        notes.append(
            f"{shortened(sorted(missing))} not compared with {first_arm}'s: no gradient, and"
            " libraries differ in such steps"
        )
    worst, beyond = 0.0, []
    for kind in firsts.keys() & others.keys():
        shared = [
            name
            for name in sorted(firsts[kind].keys() & others[kind].keys())
            if name.rpartition(" of ")[2] not in missing
        ]
        distances = step_distances(
            _moved(other, others[kind], shared),
            _moved(first, firsts[kind], shared),
            first.sizes,
            steps=GATE_STEPS,
            stored=FLOAT32,
            tried=first.rounding,
        )
        worst = max(worst, float(distances.table.max(initial=0.0)))
        for name, distance in zip(distances.names, distances.excess[0].tolist(), strict=True):
            allowed, owner = _tolerance(first, other, name), name.partition(" of ")[2]
            if not distance <= allowed:
                what = f"{kind} of '{owner}'" if owner else f"{kind} '{name}'"
                what += f" is {distance:.2g} from {first_arm}'s after {GATE_STEPS} steps"
                line = f"{what}, relative to what they changed (tolerance {allowed:.2g})"
                beyond.append((bool(owner), -distance / allowed, line))
    if not (first.is_exact and other.is_exact):
        note = (
            f"after {GATE_STEPS} steps {worst:.2g} from {first_arm}'s state; not compared with it:"
            " options of one ask for other gradients, or for less exact ones"
        )
        return StateComparison(distance=worst, notes=[note])
    failures = _shown([line for _, _, line in sorted(beyond)], most=MAX_TENSORS)
    return StateComparison(distance=worst, failures=failures, notes=notes)


def _tolerance(first: ParityReport, other: ParityReport, name: str) -> float:
    """A tensor's tolerance after the steps: their number × the largest change of a step by a
    gradient's tolerance.
    """
    coarsest = max([*first.tolerances.values(), *other.tolerances.values()], default=EXACT)
    return GATE_STEPS * max(
        coarsest, *(report.rounding.get(name, 0.0) / ROUNDING for report in (first, other))
    )


def _state(report: ParityReport) -> dict[str, Tensors]:
    """Sketches after the steps, by kind and name: parameters, buffers, and each kind of optimizer
    state.
    """
    states: dict[str, dict[str, Sequence[float]]] = {}
    for kind, sketches in (("parameter", report.ended), ("buffer", report.buffers)):
        if kept := {name: sketches[name] for name in sketches if name in report.started}:
            states[kind] = kept
    for name, sketch in report.optimizer_state.items():
        states.setdefault(f"optimizer state '{name.partition(' of ')[0]}'", {})[name] = sketch
    return dict(states)


def _moved(report: ParityReport, ends: Tensors, names: Sequence[str]) -> TensorChange:
    """Tensors before and after the steps; optimizer state begins at 0."""
    end = Sketches.of(ends, names)
    start = Sketches.of({name: report.started.get(name, [0.0]) for name in names})
    return TensorChange(start=start, end=end)
