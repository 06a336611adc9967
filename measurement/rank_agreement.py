"""Whether the ranks of one arm agree: at the start, after steps, and in their gradients after the
exchange. Pure.

Ranks copy their parameters, and sum the same numbers in the same order, so that they agree to the
last bit. Ranks that sum in another order differ by less than 1e-5, for any number of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from measurement.agent.ringside_agent.reading.script import BUFFER
from measurement.distances import FLOAT32, Array, Distances, Sketches, Tensors, rounding_of, shares
from measurement.records.record import LaunchRecord, ScriptReport

START_TOLERANCE = 1e-6
"""Relative differences below this are rounding: for copies of parameters, before any step."""
RANK_TOLERANCE = 1e-3
"""Ranks may differ by this share: of what steps changed in a parameter, of an exchanged gradient,
and of a parameter whose start is not known."""
MAX_NAMES = 3
"""Tensors that a sentence names."""


def rank_distances(
    by_rank: Sequence[Tensors],
    expected: Sketches,
    lengths: Array,
    tolerances: Array | float,
    roundings: Array | float = 0.0,
) -> Distances:
    """Distances of every rank's tensors from these, relative to ``lengths``."""
    missing = [np.nan] * expected.table.shape[1]
    table = np.zeros((len(by_rank), len(expected.names)))
    for row, tensors in zip(table, by_rank, strict=True):
        sketches = Sketches.of({name: tensors.get(name, missing) for name in expected.names})
        row[:] = shares((sketches - expected).norms, lengths)
    return Distances(names=expected.names, table=table, tolerances=tolerances, roundings=roundings)


def rank_gradient_distances(
    by_rank: Sequence[Tensors],
    expected: Sketches,
    *,
    rounding: Array,
    tolerances: Array | float,
    usual: Array | float = 0.0,
) -> Distances:
    """Distances of every rank's exchanged gradients from their expected values.

    Args:
        by_rank: the tensors of each rank.
        expected: such as the mean of the ranks' own gradients.
        rounding: the effect that rounding alone may have on each, see ``rounding_of``.
        tolerances: relative to a gradient, or to ``usual``.
        usual: norms of the summands, where these are larger than that of the sum.
    """
    lengths = np.fmax(np.fmax(expected.norms, usual), rounding)
    return rank_distances(by_rank, expected, lengths, tolerances, shares(rounding, lengths))


def distances_to_first(
    by_rank: Sequence[Tensors],
    first: Tensors,
    *,
    tolerance: float = START_TOLERANCE,
    started: Tensors | None = None,
) -> Distances:
    """Distances of every rank's tensors from the first one's, relative to these.

    Args:
        by_rank: the tensors of each rank.
        first: the expected values.
        tolerance: relative to the tensor.
        started: the first one's before the steps; then ``RANK_TOLERANCE`` of what these changed is
            allowed, too.
    """
    expected = Sketches.of(first)
    lengths, tolerances = expected.norms, np.full(len(first), tolerance)
    if started is not None:
        changes = (expected - Sketches.of({**first, **started}, expected.names)).norms
        allowed = np.fmax(tolerance * lengths, RANK_TOLERANCE * changes)
        lengths = np.where(lengths > 0, lengths, changes)
        tolerances = shares(allowed, lengths)
    return rank_distances(by_rank, expected, lengths, tolerances)


@dataclass(frozen=True, kw_only=True)
class RankAgreement:
    """In what the ranks of a script differ. Names are sorted by distance, the largest first."""

    started: Sequence[str] = ()
    """Parameters that differ before the first step."""
    step: int | None = None
    """The first step, from 1, after which parameters differ; None: they agree, or differ from the
    start."""
    moved: Sequence[str] = ()
    """Parameters that differ after that step."""
    gradients: Sequence[str] = ()
    """Parameters whose gradients differ after the exchange."""
    all_gradients: bool = False
    """Whether the gradients of all parameters differ."""
    buffers: Sequence[str] = ()
    """Buffers that differ after the compared steps."""
    started_buffers: Sequence[str] = ()
    """Buffers that differ before the first step."""
    uneven_start: bool = False
    """Whether some ranks took a step without gradients before the first, and others did not: rank 0
    of Horovod's ``broadcast_optimizer_state``, where it alone has loaded the optimizer's state."""

    @property
    def is_wrong(self) -> bool:
        """Whether ranks train differently; false where only weight decay in the step without
        gradients differs.
        """
        return bool(
            self.gradients or self.step is not None or (self.started and not self.uneven_start)
        )

    def sentence(self, arm: str) -> str | None:
        """How an arm's ranks differ, without a full stop; None where they agree."""
        if self.gradients:
            which = "all parameters" if self.all_gradients else named(self.gradients)
            start = ". They start apart, too" if self.started else ""
            return (
                f"gradients of {which} differ between the ranks of {arm} after the exchange: they"
                f" are not averaged{start}"
            )
        if self.started:
            buffers = "; so do buffers" if self.started_buffers else ""
            why = (
                ". Only some took the step without gradients of broadcast_optimizer_state"
                if self.uneven_start
                else ""
            )
            return (
                f"the ranks of {arm} start apart: {named(self.started)} differ before the first"
                f" step{buffers}{why}"
            )
        if self.step is not None:
            return (
                f"the ranks of {arm} start alike and are apart from step {self.step} on:"
                f" {named(self.moved)}"
            )
        return None


def agreement(reports: Sequence[ScriptReport]) -> RankAgreement | None:
    """Compares the ranks' reports; None for a single rank, and where each rank has a share of the
    parameters.
    """
    if len(reports) < 2 or any(report.sharded for report in reports):
        return None
    first, *others = sorted(reports, key=lambda report: report.rank)
    differing = _differing([other.started for other in others], first.started)
    started = [name for name in differing if not name.startswith(BUFFER)]
    step, moved = (None, []) if started else _first_step(first, others)
    gradients = _differing_gradients(first, others)
    return RankAgreement(
        started=started,
        started_buffers=[
            name.removeprefix(BUFFER) for name in differing if name.startswith(BUFFER)
        ],
        step=step,
        moved=moved,
        gradients=gradients,
        all_gradients=bool(gradients) and len(gradients) == len(first.steps[0].gradients),
        buffers=[
            name.removeprefix(BUFFER)
            for name in _differing([other.buffers for other in others], first.buffers)
        ],
        uneven_start=len({report.configuration.get("optimizer.empty_steps") for report in reports})
        > 1,
    )


def describe_rank_difference(record: LaunchRecord) -> str | None:
    """How the ranks of an arm differ, and since which step; None where they agree or cannot be
    compared.
    """
    agreement_of_ranks = agreement(record.scripts)
    return None if agreement_of_ranks is None else agreement_of_ranks.sentence(record.arm)


def named(names: Sequence[str]) -> str:
    """Such as ``conv1.weight, fc.bias and 3 more``."""
    shown = ", ".join(names[:MAX_NAMES])
    return f"{shown} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else shown


def common_names(ours: Tensors, theirs: Tensors) -> list[str]:
    """Names of tensors that both have, with sketches of one length."""
    return [name for name in theirs if name in ours and len(ours[name]) == len(theirs[name])]


def _differing(
    by_rank: Sequence[Tensors], first: Tensors, started: Tensors | None = None
) -> list[str]:
    """Names of tensors in which ranks differ from the first one, among those that all have."""
    return distances_to_first(by_rank, _in_all(by_rank, first), started=started).names_beyond()


def _in_all(by_rank: Sequence[Tensors], first: Tensors) -> Tensors:
    return {
        name: first[name]
        for name in first
        if all(len(tensors.get(name, ())) == len(first[name]) for tensors in by_rank)
    }


def _first_step(
    first: ScriptReport, others: Sequence[ScriptReport]
) -> tuple[int | None, list[str]]:
    """The first step, from 1, after which the ranks' parameters differ, and their names."""
    for number, step in enumerate(first.steps):
        parameters = [
            other.steps[number].parameters for other in others if len(other.steps) > number
        ]
        expected = {
            name: step.parameters[name] for name in common_names(first.started, step.parameters)
        }
        if moved := _differing(parameters, expected, first.started):
            return number + 1, moved
    return None, []


def _differing_gradients(first: ScriptReport, others: Sequence[ScriptReport]) -> list[str]:
    """Parameters whose gradients differ after the exchange in the first step."""
    if not all(report.steps for report in (first, *others)):
        return []
    gradients = [other.steps[0].gradients for other in others]
    expected = Sketches.of(_in_all(gradients, first.steps[0].gradients))
    return rank_gradient_distances(
        gradients,
        expected,
        rounding=rounding_of(expected, first.sizes, FLOAT32),
        tolerances=RANK_TOLERANCE,
    ).names_beyond()
