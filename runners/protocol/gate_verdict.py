"""Judges all ranks' reports of the gate: whether an arm computes what it should, and whether its ranks drift apart. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence

import numpy as np

from backends.base import EXACT
from measurement.errors import joined, shortened
from measurement.records.record import GATE_STEPS, ParityResult
from runners.protocol.messages import CheckReport, DriftReport, ParityReport, Sketches

TOLERANCE = 1e-3
"""Relative; ranks that add up alike are apart by less than 1e-5, whatever the number of steps."""
REMEDY = "every rank must take the same steps, so no schedule may follow a rank's own loss or batches"
LEARNING_RATE = "lr"
"""The name that PyTorch's optimizers have for it."""


def drift_between(reports: Sequence[DriftReport | None]) -> str | None:
    """Say how ranks have drifted apart, if they have and can be compared; reports by rank, None of one that trains nothing."""
    known = [report for report in reports if report is not None]
    found = [*_hyperparameters(known), *_parameters(known)] if len(known) > 1 else []
    return f"ranks have drifted apart: {'; '.join(found)} ({REMEDY})" if found else None


def _hyperparameters(reports: Sequence[DriftReport]) -> Iterator[str]:
    for name, values in reports[0].hyperparameters.items():
        ranks = zip(*(report.hyperparameters.get(name, values) for report in reports), strict=False)
        different = next((each for each in ranks if not np.allclose(each, each[0], rtol=TOLERANCE, atol=0, equal_nan=True)), None)
        if different:
            what = "learning rates" if name == LEARNING_RATE else name
            yield f"{what} {', '.join(f'{one:g}' for one in dict.fromkeys(different))}"


def _parameters(reports: Sequence[DriftReport]) -> Iterator[str]:
    apart = {
        name: max(_distance(report.parameters.get(name, values), values) for report in reports)
        for name, values in reports[0].parameters.items()
    }
    names = [name for name, distance in apart.items() if not distance <= TOLERANCE]
    if names:
        yield f"parameters {shortened(names)}, by up to {max(apart[name] for name in names):.2g} of their size"


def _distance(values: Sequence[float], first: Sequence[float]) -> float:
    """Relative; 0 where both are not finite alike, since a training that diverges does so on all ranks."""
    if np.array_equal(values, first, equal_nan=True):
        return 0.0
    size, apart = float(np.linalg.norm(first)), float(np.linalg.norm(np.subtract(values, first)))
    return apart / size if size > 0 and np.isfinite(apart) else float("inf")


START_TOLERANCE = 1e-6
SPREAD_TOLERANCE = 1e-4
NOISE_SAFETY = 4.0
"""× what rounding was found to make of a gradient is within its tolerance."""
NEGLIGIBLE_SHARE = 1e-3
"""An error up to this × tolerance × the size of a typical tensor is allowed, too: the gradient of a bias before a batch norm is
pure rounding noise, so that its relative error means nothing."""
MAX_FAILURES = 8
NOT_REPEATABLE = "the workload's loss is not repeatable"
"""What is said of a step that is another one each time, which is nobody's failure but the workload's."""
REPEATABLE_SO = (
    "draw from the generators of torch, numpy and random, or from one that the workload's constructor makes from self.seed, and "
    "keep state in the workload or the model"
)


def judge_gate(reports: Sequence[ParityReport | CheckReport]) -> tuple[ParityResult, dict[str, str]]:
    """Judge all ranks' reports, by rank: the verdict, and why cases of a micro-benchmark are not offered, by their name."""
    checks = [report for report in reports if isinstance(report, CheckReport)]
    if checks:
        return judge_checks(checks), checks[0].not_offered
    return judge_parity([report for report in reports if isinstance(report, ParityReport)]), {}


def _shown(failures: list[str]) -> list[str]:
    more = len(failures) - MAX_FAILURES
    return failures[:MAX_FAILURES] + ([f"and {more} more"] if more > 0 else [])


def judge_checks(reports: Sequence[CheckReport]) -> ParityResult:
    """Judge a micro-benchmark's checks; reports by rank."""
    failures = [f"rank {rank}: {failure}" for rank, report in enumerate(reports) for failure in report.failures]
    return ParityResult(
        passed=not failures,
        failures=_shown(failures),
        notes=[f"{reports[0].cases} cases ran once and were checked, and again before each block"],
    )


def judge_parity(reports: list[ParityReport]) -> ParityResult:
    """Judge the parity of an arm; reports by rank."""
    first = reports[0]
    failures = _same_samples(reports)
    start = _compare(
        [report.started for report in reports],
        first.wanted,
        sizes=first.sizes,
        tolerance=dict.fromkeys(first.wanted, START_TOLERANCE),
    )
    failures += [f"rank {r}: '{name}' differs from rank 0's by {e:.2g} (relative) after prepare()" for r, name, e in start[1]]
    notes = [f"not compared, since it cannot be put in numbers: {joined(first.not_compared)}"] if first.not_compared else []
    if not first.samples:
        notes.append("samples not compared: the batches hold no tensors")
    allowed = gradient_tolerances(first)
    gradient_error: float | None = None
    if first.gradient_scale is None:
        notes.append("gradients not compared: this option does not compute the mean of the ranks' gradients")
    else:
        gradient_error, wrong = _gradient_errors(reports, scale=first.gradient_scale)
        failures += [
            f"rank {r}: gradient of '{name}' is off by {e:.2g} (relative L2, tolerance {allowed[name]:g})"
            if math.isfinite(e)
            else f"rank {r}: gradient of '{name}' is not finite after the exchange, and each rank's own is"
            for r, name, e in wrong
        ]
        if first.gradient_scale != 1.0:
            notes.append(f"gradients are {first.gradient_scale:g} x the mean, as the options ask")
    spreads = {name: max(SPREAD_TOLERANCE, first.tolerances.get(name, 0.0)) for name in first.ended}
    spread, apart = _compare([report.ended for report in reports], first.ended, sizes=first.sizes, tolerance=spreads)
    drifted = drift_between([report.drift for report in reports])
    if drifted:
        failures.insert(0, drifted)
    else:
        failures += [f"rank {r}: '{name}' is {e:.2g} (relative) from rank 0's after {GATE_STEPS} steps" for r, name, e in apart]
    return ParityResult(
        passed=not failures,
        failures=_shown(failures),
        gradient_error=gradient_error,
        parameter_spread=spread,
        tolerance=max(allowed.values(), default=first.gradient_tolerance),
        notes=notes,
        calls=[report.calls for report in reports],
        samples_digest=hashlib.sha256("".join(report.samples for report in reports).encode()).hexdigest()[:16],
    )


def _same_samples(reports: list[ParityReport]) -> list[str]:
    seen: dict[str, int] = {}
    failures = []
    for rank, report in enumerate(reports):
        if report.samples and report.samples in seen:
            failures.append(f"ranks {seen[report.samples]} and {rank} consumed the same samples: the shards are not apart")
        seen.setdefault(report.samples, rank)
    return failures


def _gradient_errors(reports: list[ParityReport], *, scale: float) -> tuple[float, list[tuple[int, str, float]]]:
    """Largest relative error, and the tensors past the tolerance, of the synchronised gradients against the scaled mean."""
    first, allowed = reports[0], gradient_tolerances(reports[0])
    local = {name: np.array([report.local[name] for report in reports]) for name in first.local}
    mean = {name: (scale * values.mean(axis=0)).tolist() for name, values in local.items()}
    usual = {name: scale * float(np.mean(np.linalg.norm(values, axis=1))) for name, values in local.items()}
    return _compare(
        [report.synced for report in reports],
        mean,
        sizes=first.sizes,
        tolerance=allowed,
        usual={name: max(size, NOISE_SAFETY * scale * first.noise.get(name, 0.0) / allowed[name]) for name, size in usual.items()},
    )


def gradient_tolerances(report: ParityReport) -> dict[str, float]:
    """By gradient: what rounding in its dtype asks for, or the backend's and the precision's where they round more coarsely."""
    coarser = report.gradient_tolerance if report.gradient_tolerance > EXACT else 0.0
    return {name: max(coarser, report.tolerances.get(name, EXACT)) for name in report.local}


def _compare(
    found: list[Sketches],
    wanted: Sketches,
    *,
    sizes: dict[str, int],
    tolerance: dict[str, float],
    usual: dict[str, float] | None = None,
) -> tuple[float, list[tuple[int, str, float]]]:
    """Relative L2 error of every rank's tensors: the largest, and (rank, tensor, error) of those past the tolerance."""
    norms = {name: float(np.linalg.norm(values)) for name, values in wanted.items()}
    elements = sum(sizes.get(name, 0) for name in wanted)
    rms = (sum(norm**2 for norm in norms.values()) / max(elements, 1)) ** 0.5
    worst, wrong = 0.0, []
    for name, values in wanted.items():  # of all ranks at once: one by one, a thousand took seconds
        size = max(norms[name], (usual or {}).get(name, 0.0), NEGLIGIBLE_SHARE * rms * sizes.get(name, 0) ** 0.5)
        distances = np.full(len(found), math.inf)
        there = [rank for rank, sketches in enumerate(found) if name in sketches]
        distances[there] = (
            np.linalg.norm(np.array([found[rank][name] for rank in there]) - np.array(values), axis=1) if there else 0
        )
        errors = np.where(distances == 0, 0.0, distances / size if size > 0 else math.inf)
        worst = max(worst, float(np.fmax.reduce(errors)))
        wrong += [(int(rank), name, float(errors[rank])) for rank in np.flatnonzero(~(errors <= tolerance[name]))]
    wrong.sort(key=lambda entry: entry[0])
    return worst, sorted(wrong, key=lambda entry: -entry[2] if entry[2] == entry[2] else -float("inf"))
