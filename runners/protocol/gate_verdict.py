"""Judges all ranks' reports of the gate: whether an arm computes what it should. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from measurement.record import ParityResult
from runners.protocol.drift import drift_between
from runners.protocol.messages import CheckReport, ParityReport, Sketches

START_TOLERANCE = 1e-6
SPREAD_TOLERANCE = 1e-4
FLOOR = 1e-3
"""An error up to this × tolerance × the size of a typical tensor is allowed, too: the gradient of a bias before a batch norm is
pure rounding noise, so that its relative error means nothing."""
MAX_FAILURES = 8


def judge_gate(reports: Sequence[ParityReport | CheckReport], *, steps: int) -> tuple[ParityResult, dict[str, str]]:
    """Judge the gate.

    Args:
        reports: of all ranks, by rank.
        steps: that the gate took.

    Returns:
        The verdict, and why cases of a micro-benchmark are not offered, by their name.
    """
    checks = [report for report in reports if isinstance(report, CheckReport)]
    if checks:
        return judge_checks(checks), checks[0].not_offered
    return judge_parity([report for report in reports if isinstance(report, ParityReport)], steps=steps), {}


def judge_checks(reports: Sequence[CheckReport]) -> ParityResult:
    """Judge a micro-benchmark's checks; reports by rank."""
    failures = [f"rank {rank}: {failure}" for rank, report in enumerate(reports) for failure in report.failures]
    more = len(failures) - MAX_FAILURES
    return ParityResult(
        passed=not failures,
        failures=failures[:MAX_FAILURES] + ([f"and {more} more"] if more > 0 else []),
        notes=[f"{reports[0].cases} cases ran once and were checked, and again before each block"],
    )


def judge_parity(reports: list[ParityReport], *, steps: int) -> ParityResult:
    """Judge the parity of an arm; reports by rank."""
    first = reports[0]
    failures = _same_samples(reports)
    start = _compare(
        [report.started for report in reports],
        first.wanted,
        sizes=first.sizes,
        tolerance=START_TOLERANCE,
    )
    failures += [f"rank {r}: '{name}' differs from rank 0's by {e:.2g} (relative) after prepare()" for r, name, e in start[1]]
    notes = []
    gradient_error: float | None = None
    if first.gradient_scale is None:
        notes.append("gradients not compared: this option does not compute the mean of the ranks' gradients")
    else:
        gradient_error, wrong = _gradient_errors(reports, scale=first.gradient_scale)
        failures += [
            f"rank {r}: gradient of '{name}' is off by {e:.2g} (relative L2, tolerance {first.gradient_tolerance:g})"
            if math.isfinite(e)
            else f"rank {r}: gradient of '{name}' is not finite after the exchange, and each rank's own is"
            for r, name, e in wrong
        ]
        if first.gradient_scale != 1.0:
            notes.append(f"gradients are {first.gradient_scale:g} x the mean, as the options ask")
    spread, apart = _compare([report.ended for report in reports], first.ended, sizes=first.sizes, tolerance=SPREAD_TOLERANCE)
    drifted = drift_between([report.drift for report in reports])
    if drifted:
        failures.insert(0, drifted)
    else:
        failures += [f"rank {r}: '{name}' is {e:.2g} (relative) from rank 0's after {steps} steps" for r, name, e in apart]
    shown = failures[:MAX_FAILURES] + ([f"and {len(failures) - MAX_FAILURES} more"] if len(failures) > MAX_FAILURES else [])
    return ParityResult(
        passed=not failures,
        failures=shown,
        gradient_error=gradient_error,
        parameter_spread=spread,
        tolerance=first.gradient_tolerance,
        notes=notes,
        calls=[report.calls for report in reports],
        samples_digest=hashlib.sha256("".join(report.samples for report in reports).encode()).hexdigest()[:16],
    )


def _same_samples(reports: list[ParityReport]) -> list[str]:
    seen: dict[str, int] = {}
    failures = []
    for rank, report in enumerate(reports):
        if report.samples in seen:
            failures.append(f"ranks {seen[report.samples]} and {rank} consumed the same samples: the shards are not apart")
        seen.setdefault(report.samples, rank)
    return failures


def _gradient_errors(reports: list[ParityReport], *, scale: float) -> tuple[float, list[tuple[int, str, float]]]:
    """Largest relative error, and the tensors past the tolerance, of the synchronised gradients against the scaled mean."""
    local = {name: np.array([report.local[name] for report in reports]) for name in reports[0].local}
    mean = {name: (scale * values.mean(axis=0)).tolist() for name, values in local.items()}
    usual = {name: scale * float(np.mean(np.linalg.norm(values, axis=1))) for name, values in local.items()}
    return _compare(
        [report.synced for report in reports],
        mean,
        sizes=reports[0].sizes,
        tolerance=reports[0].gradient_tolerance,
        usual=usual,
    )


def _compare(
    found: list[Sketches],
    wanted: Sketches,
    *,
    sizes: dict[str, int],
    tolerance: float,
    usual: dict[str, float] | None = None,
) -> tuple[float, list[tuple[int, str, float]]]:
    """Relative L2 error of every rank's tensors: the largest, and (rank, tensor, error) of those past the tolerance."""
    norms = {name: float(np.linalg.norm(values)) for name, values in wanted.items()}
    elements = sum(sizes[name] for name in wanted)
    rms = (sum(norm**2 for norm in norms.values()) / max(elements, 1)) ** 0.5
    worst, wrong = 0.0, []
    for rank, sketches in enumerate(found):
        for name, values in wanted.items():
            distance = float(np.linalg.norm(np.subtract(sketches[name], values)))
            size = max(norms[name], (usual or {}).get(name, 0.0), FLOOR * rms * sizes[name] ** 0.5)
            error = 0.0 if distance == 0 else distance / size if size > 0 else float("inf")
            worst = max(worst, error)
            if not error <= tolerance:
                wrong.append((rank, name, error))
    return worst, sorted(wrong, key=lambda entry: -entry[2] if entry[2] == entry[2] else -float("inf"))
