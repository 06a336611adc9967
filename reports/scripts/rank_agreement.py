"""Whether the ranks of one script agree: at the start, after the compared steps, and in their gradients after the exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from measurement.records.record import LaunchRecord
from measurement.records.script_report import ScriptReport
from reports.scripts.sketches import BUFFER, Sketches, Tensors, common_names, farthest, first_gradients, named, parameters_of
from reports.statistics.student import Array

ALIKE = 1e-6
"""Ranks of one arm copy their parameters, or sum the same numbers in the same order: they agree to the last bit. This is for
those that sum in another order, relative to the tensor."""
OF_THE_CHANGE = 1e-3
"""Parameters may differ by this share of what the steps changed."""
OF_A_GRADIENT = 1e-3
"""Exchanged gradients may differ by this share."""
NOISE = 1e-5
"""A gradient whose elements are smaller than this share of a usual one is held against a usual one of its size: it may be
nothing but rounding, such as that of a bias before a batch norm."""


@dataclass(frozen=True, kw_only=True)
class RankAgreement:
    """In what the ranks of an arm differ."""

    started: Sequence[str] = ()
    """Parameters that differ before the first step, the farthest first."""
    step: int | None = None
    """The first step, from 1, after which parameters differ; None: they agree, or differed from the start on."""
    moved: Sequence[str] = ()
    """Parameters that differ after that step."""
    gradients: Sequence[str] = ()
    """Parameters whose gradients differ after the exchange."""
    all_gradients: bool = False
    """Whether there is none whose gradients agree."""
    buffers: Sequence[str] = ()
    """Buffers that differ after the compared steps."""
    started_buffers: Sequence[str] = ()
    """Buffers that differ before the first step."""


def agreement(reports: Sequence[ScriptReport]) -> RankAgreement | None:
    """What the ranks' reports say; None for a single rank, and where each rank has a share of the parameters."""
    if len(reports) < 2 or any(report.sharded for report in reports):
        return None
    first, *others = sorted(reports, key=lambda report: report.rank)
    started = [_apart(other.started, first.started) for other in others]
    gradients = _gradients(first, others)
    apart = _united(started)
    step, moved = (None, []) if any(not name.startswith(BUFFER) for name in apart) else _first_step(first, others)
    return RankAgreement(
        started=[name for name in apart if not name.startswith(BUFFER)],
        started_buffers=[name.removeprefix(BUFFER) for name in apart if name.startswith(BUFFER)],
        step=step,
        moved=moved,
        gradients=gradients,
        all_gradients=bool(gradients) and len(gradients) == len(first.steps[0].gradients),
        buffers=[name.removeprefix(BUFFER) for name in _united([_apart(other.buffers, first.buffers) for other in others])],
    )


def ranks_apart(record: LaunchRecord) -> str | None:
    """How the ranks of an arm are apart, with the step at which that began; None where they agree or cannot be compared."""
    found = agreement(record.scripts)
    return None if found is None else apart_words(record.arm, found)


def apart_words(arm: str, found: RankAgreement) -> str | None:
    """How an arm's ranks are apart, without a full stop; None where they agree."""
    if found.gradients:
        which = "all parameters" if found.all_gradients else named(found.gradients)
        start = ". They start apart, too" if found.started else ""
        return f"gradients of {which} differ between the ranks of {arm} after the exchange: they are not averaged{start}"
    if found.started:
        buffers = "; so do buffers" if found.started_buffers else ""
        return f"the ranks of {arm} start apart: {named(found.started)} differ before the first step{buffers}"
    if found.step is not None:
        return f"the ranks of {arm} start alike and are apart from step {found.step} on: {named(found.moved)}"
    return None


def _apart(ours: Tensors, theirs: Tensors) -> dict[str, float]:
    """Relative distances of tensors that are not alike."""
    names = [name for name in common_names(ours, theirs) if ours[name] != theirs[name]]  # nearly always none
    mine, its = Sketches.of(ours, names), Sketches.of(theirs, names)
    return _beyond(ALIKE, mine.less(its).shares(np.maximum(mine.norms, its.norms)))


def _beyond(least: float, distances: dict[str, float]) -> dict[str, float]:
    """Those that are not within this, NaN among them."""
    return {name: distance for name, distance in distances.items() if not distance <= least}


def _united(found: Sequence[dict[str, float]]) -> list[str]:
    """The names of all, by their largest distance."""
    largest: dict[str, float] = {}
    for distances in found:
        for name, distance in distances.items():
            largest[name] = max(largest.get(name, 0.0), distance)
    return farthest(largest)


def _first_step(first: ScriptReport, others: Sequence[ScriptReport]) -> tuple[int | None, list[str]]:
    """The first step, from 1, after which the ranks' parameters are apart, and which are."""
    for number, step in enumerate(first.steps):
        moved = [_moved_apart(other, first, number) for other in others if number < len(other.steps)]
        if step.parameters and any(moved):
            return number + 1, _united(moved)
    return None, []


def _moved_apart(ours: ScriptReport, theirs: ScriptReport, step: int) -> dict[str, float]:
    """Distances after a step that are neither rounding nor small beside what the steps changed."""
    mine, its = ours.steps[step].parameters, theirs.steps[step].parameters
    far = [name for name in _apart(mine, its) if name in theirs.started and len(theirs.started[name]) == len(its[name])]
    now, before, other = Sketches.of(its, far), Sketches.of(theirs.started, far), Sketches.of(mine, far)
    moved = np.maximum(now.less(before).norms, other.less(before).norms)
    return _beyond(OF_THE_CHANGE, other.less(now).shares(moved))


def _gradients(first: ScriptReport, others: Sequence[ScriptReport]) -> list[str]:
    """Parameters whose gradients differ after the exchange, of the first step."""
    if not first.steps or any(not other.steps for other in others):
        return []
    found = []
    for other in others:
        ours, theirs = first_gradients(other, first)
        if np.array_equal(ours.table, theirs.table):
            continue
        lengths = beyond_noise(np.maximum(ours.norms, theirs.norms), usual_lengths(theirs, first))
        found.append(_beyond(OF_A_GRADIENT, ours.less(theirs).shares(lengths)))
    return _united(found)


def usual_lengths(gradients: Sketches, report: ScriptReport) -> Array:
    """How long the gradient of each parameter would be if its elements were as large as those of all together."""
    sizes = np.array([report.sizes.get(name, 1) for name in gradients.names], dtype=np.float64)
    return np.asarray(gradients.norm * np.sqrt(sizes / max(float(sizes.sum()), 1.0)))


def beyond_noise(lengths: Array, usual: Array) -> Array:
    """What gradients of these lengths are held against: those that may be nothing but rounding, against usual ones."""
    return np.where(lengths < NOISE * usual, usual, lengths)


def changed_parameters(report: ScriptReport) -> list[str]:
    """Parameters that some compared step changed."""
    started = parameters_of(report.started)
    return [
        name
        for name, sketch in started.items()
        if any(name in step.parameters and step.parameters[name] != sketch for step in report.steps)
    ]
