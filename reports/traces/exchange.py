"""From the spans of a trace to steps and their collectives.

A collective's ranks come to it one after another; from the last until every rank has the result is
its transfer. The n-th collective of a step is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from measurement.records.trace import ArmTrace, Span


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective of one step."""

    ranks: Sequence[Span]
    """By rank."""

    @property
    def arrived_ns(self) -> int:
        """When the last rank had come."""
        return max(span.begin_ns for span in self.ranks)

    @property
    def done_ns(self) -> int:
        """When every rank had the result."""
        return max(span.end_ns for span in self.ranks)

    @property
    def entered_ns(self) -> int | None:
        """When it began to move data, if that is known."""
        known = [span.entered_ns for span in self.ranks if span.entered_ns is not None]
        return max(known) if known else None


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """One step of all ranks."""

    spans: Sequence[Span]
    collectives: Sequence[Collective]

    def own_s(self, *beginnings: str) -> float:
        """Mean over ranks of what the library did by itself, of names that begin so; seconds."""
        lengths_ns = [
            span.length_ns
            for span in self.spans
            if span.row == "library" and span.name.startswith(beginnings)
        ]
        return sum(lengths_ns) / len({span.rank for span in self.spans}) / 1e9


def busy_s(collectives: Sequence[Collective]) -> float:
    """For how long at least one of them was transferred, seconds."""
    busy, until = 0, 0
    for collective in sorted(collectives, key=lambda collective: collective.arrived_ns):
        busy += max(0, collective.done_ns - max(collective.arrived_ns, until))
        until = max(until, collective.done_ns)
    return busy / 1e9


def traced_steps(trace: ArmTrace) -> list[TracedStep]:
    """The steps of an arm that every rank has."""
    ranks = {span.rank for span in trace.spans}
    by_step: dict[str, dict[int, Span]] = {}
    for span in trace.spans:
        if span.row == "step":
            by_step.setdefault(span.name, {})[span.rank] = span
    return [_step(trace.spans, steps) for steps in by_step.values() if steps.keys() == ranks]


def _step(spans: Sequence[Span], steps: Mapping[int, Span]) -> TracedStep:
    """``steps``: by rank, the span of the whole step."""
    inside = [
        span
        for span in spans
        if steps[span.rank].begin_ns <= span.begin_ns < steps[span.rank].end_ns
    ]
    exchanges = sorted(
        (span for span in inside if span.row == "exchange"),
        key=lambda span: span.entered_ns or span.begin_ns,
    )
    by_rank = [[span for span in exchanges if span.rank == rank] for rank in sorted(steps)]
    is_even = len(set(map(len, by_rank))) == 1
    matched = zip(*by_rank, strict=True) if is_even else []
    return TracedStep(spans=inside, collectives=[Collective(ranks=ranks) for ranks in matched])
