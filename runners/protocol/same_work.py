"""Judges whether two arms of as many ranks did the same work in the gate's steps. Pure.

Arms begin with the same parameters and take the same batches, so what they come to differs by rounding alone (sums in another
order). It may be apart by ``GATE_STEPS`` × ``SAFETY`` × the rounding of one step, relative to what the steps changed. The rounding
of one step is ``ROUNDING`` × the gradient's tolerance, or what each rank 0 found by trying where that is more
(``ParityReport.rounding``). Besides, each step rounds the tensor itself, which counts where steps hardly change it, as in a warm-up
of the learning rate: ``EPSILON`` × the square root of ``GATE_STEPS``, relative to the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from measurement.errors import shortened
from measurement.records.record import GATE_STEPS
from runners.protocol.gate_verdict import NEGLIGIBLE_SHARE, gradient_tolerances
from runners.protocol.messages import ParityReport

ROUNDING = 0.1
"""Part of the gradient's tolerance that sums in another order may use up: 1e-5 in fp32, where 1e-6 and less is found."""
SAFETY = 10.0
EPSILON = 2.0**-23
"""The last place of a number of float32, relative to it."""
STEP_HOOKS = ("the optimizer's step pre-hooks", "the optimizer's step post-hooks")
"""As in the counts of ``ParityReport.calls``."""
MAX_TENSORS = 3
"""Named in a message; of the others the number is told."""


@dataclass(frozen=True, kw_only=True)
class StateComparison:
    """What two arms' parameters, buffers and optimizer state after the gate's steps say."""

    distance: float | None = None
    """The largest of a tensor, relative to what the steps changed in it; None: not compared."""
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    end: npt.NDArray[np.float64]
    change: npt.NDArray[np.float64]
    """Sketches."""
    size: int


def compare_calls(first: Sequence[dict[str, int]], calls: Sequence[dict[str, int]], *, first_arm: str) -> list[str]:
    """Compare how often two arms called what, by rank.

    Returns:
        A line for each kind of call that differs, of the first rank where it does. What one does not count is not compared.
    """
    failures: dict[str, str] = {}
    for rank, (wanted, found) in enumerate(zip(first, calls, strict=True)):
        for kind in sorted(wanted.keys() & found.keys()):
            times, wanted_times = found[kind], wanted[kind]
            if times != wanted_times:
                it = "them" if kind.endswith("hooks") else "it"
                line = f"rank {rank} runs {kind} {times} times in {GATE_STEPS} steps, {first_arm} runs {it} {wanted_times} times"
                failures.setdefault(kind, line)
    return list(failures.values())


def drops_step_hooks(calls: Sequence[dict[str, int]]) -> bool:
    """Whether hooks on the optimizer's step, which run once a step, never ran on some rank. ``calls``: by rank."""
    return any(times == 0 for counts in calls for kind, times in counts.items() if kind in STEP_HOOKS)


def compare_state(first: ParityReport, other: ParityReport, *, first_arm: str) -> StateComparison:
    """Compare what two arms came to after the gate's steps, by the reports of their ranks 0."""
    if first.in_some_steps and first.steps_zeros != other.steps_zeros:
        names = shortened(first.in_some_steps)
        reason = f"{names} take part in some steps only; one library steps zeros then, the other leaves them as they are"
        return StateComparison(notes=[f"state not compared with {first_arm}'s: {reason}"])
    firsts, others = _state(first), _state(other)
    notes = [
        f"{kind} not all compared with {first_arm}'s: one of both does not keep it, or not for all parameters"
        for kind in sorted(firsts.keys() | others.keys())
        if firsts.get(kind, {}).keys() != others.get(kind, {}).keys()
    ]
    missing = {*first.without_gradient, *other.without_gradient}
    if missing:
        notes.append(
            f"{shortened(sorted(missing))} not compared with {first_arm}'s: no gradient, and libraries differ in such steps"
        )
    worst, beyond = 0.0, []
    for kind, tensors in firsts.items():
        floor = NEGLIGIBLE_SHARE * _typical(list(tensors.values()))
        for name in sorted(tensors.keys() & others.get(kind, {}).keys()):
            if name.rpartition(" of ")[2] in missing:
                continue
            tensor = tensors[name]
            apart = float(np.linalg.norm(others[kind][name].end - tensor.end))
            scale = max(float(np.linalg.norm(tensor.change)), floor * tensor.size**0.5)
            distance = 0.0 if apart == 0 else apart / scale if scale > 0 else float("inf")
            itself = EPSILON * GATE_STEPS**0.5 * float(np.linalg.norm(tensor.end))
            allowed = _tolerance(first, other, name) + (itself / scale if scale > 0 else 0.0)
            worst = max(worst, distance)
            if not distance <= allowed:
                owner = name.partition(" of ")[2]
                what = f"{kind} of '{owner}'" if owner else f"{kind} '{name}'"
                what += f" is {distance:.2g} from {first_arm}'s after {GATE_STEPS} steps"
                beyond.append(
                    (bool(owner), -distance / allowed, f"{what}, relative to what they changed (tolerance {allowed:.2g})")
                )
    if not (first.is_exact and other.is_exact):
        reason = "not held against it: options of one ask for other gradients, or for less exact ones"
        return StateComparison(distance=worst, notes=[f"after {GATE_STEPS} steps {worst:.2g} from {first_arm}'s state; {reason}"])
    failures = [line for _, _, line in sorted(beyond)]
    more = [f"and {len(failures) - MAX_TENSORS} more tensors"] if len(failures) > MAX_TENSORS else []
    return StateComparison(distance=worst, failures=failures[:MAX_TENSORS] + more, notes=notes)


def _tolerance(first: ParityReport, other: ParityReport, name: str) -> float:
    gradients = [*gradient_tolerances(first).values(), *gradient_tolerances(other).values()]
    rounding = ROUNDING * max(gradients, default=max(first.gradient_tolerance, other.gradient_tolerance))
    return GATE_STEPS * SAFETY * max(rounding, first.rounding.get(name, 0.0), other.rounding.get(name, 0.0))


def _state(report: ParityReport) -> dict[str, dict[str, _Tensor]]:
    """Tensors by kind and name: parameters, buffers, and each kind of optimizer state, which begins at 0."""
    found: dict[str, dict[str, _Tensor]] = {}
    for kind, sketches in (("parameter", report.ended), ("buffer", report.buffers)):
        for name in sketches.keys() & report.started.keys():
            end = np.array(sketches[name])
            tensor = _Tensor(end=end, change=end - np.array(report.started[name]), size=report.sizes[name])
            found.setdefault(kind, {})[name] = tensor
    for name, values in report.optimizer_state.items():
        end = np.array(values)
        kind = f"optimizer state '{name.partition(' of ')[0]}'"
        found.setdefault(kind, {})[name] = _Tensor(end=end, change=end, size=report.sizes[name])
    return found


def _typical(tensors: Sequence[_Tensor]) -> float:
    """The root mean square change of an element."""
    elements = sum(tensor.size for tensor in tensors)
    return math.sqrt(sum(float(tensor.change @ tensor.change) for tensor in tensors) / max(elements, 1))
