"""From the spans of a trace to steps and their collectives, and how much of the exchange no
computing hides.

A collective's ranks come to it one after another; from the last until every rank has the result is
its transfer. The n-th collective of a step is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from measurement.records.trace import ArmTrace, Span, Traces
from reports.schema import TracedArm, TraceFigures
from reports.statistics.student import t_interval


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

    begin_ns: int
    spans: Sequence[Span]
    collectives: Sequence[Collective]

    @property
    def ranks(self) -> set[int]:
        """All that took the step."""
        return {span.rank for span in self.spans if span.row == "step"}

    def own_s(self, *beginnings: str) -> float:
        """Mean over ranks of what the library did by itself, of names that begin so; seconds."""
        library_spans = [
            span
            for span in self.spans
            if span.row == "library" and span.name.startswith(beginnings)
        ]
        return sum(span.length_ns for span in library_spans) / len(self.ranks) / 1e9

    def gradients(self, rank: int) -> list[Span]:
        """A rank's gradients, in the order in which they were whole; none where the profiler saw
        none.
        """
        gradients = [span for span in self.spans if span.row == "gradient" and span.rank == rank]
        return sorted(gradients, key=lambda span: span.end_ns)

    def tail_s(self) -> float | None:
        """Seconds from the last gradient until the last collective was done, mean over ranks; None
        without gradients.
        """
        ends = [gradients[-1].end_ns for rank in self.ranks if (gradients := self.gradients(rank))]
        done_ns = max((collective.done_ns for collective in self.collectives), default=0)
        return fmean(max(0, done_ns - end) for end in ends) / 1e9 if ends else None

    def exposed_s(self) -> float | None:
        """Seconds of exchange that no computing hides, mean over ranks: ``tail_s``, and collectives
        before the first gradient.
        """
        first_ns = min(
            (gradient.end_ns for rank in self.ranks for gradient in self.gradients(rank)), default=0
        )
        early = sum(
            span.length_ns
            for collective in self.collectives
            if collective.done_ns < first_ns
            for span in collective.ranks
        )
        tail_s = self.tail_s()
        return None if tail_s is None else tail_s + early / len(self.ranks) / 1e9


def busy_s(collectives: Sequence[Collective]) -> float:
    """For how long at least one of them was transferred, seconds."""
    busy, until = 0, 0
    for collective in sorted(collectives, key=lambda collective: collective.arrived_ns):
        busy += max(0, collective.done_ns - max(collective.arrived_ns, until))
        until = max(until, collective.done_ns)
    return busy / 1e9


def traced_steps(trace: ArmTrace) -> list[TracedStep]:
    """The steps of an arm that every rank has, in order."""
    by_step: dict[str, list[Span]] = {}
    for span in trace.spans:
        if span.row == "step":
            by_step.setdefault(span.name, []).append(span)
    ranks = {span.rank for span in trace.spans}
    whole = [spans for spans in by_step.values() if {span.rank for span in spans} == ranks]
    return [
        _step(trace.spans, sorted(spans, key=lambda span: span.rank))
        for spans in sorted(whole, key=lambda spans: spans[0].begin_ns)
    ]


def _step(spans: Sequence[Span], step_spans: Sequence[Span]) -> TracedStep:
    inside = [
        span
        for span in spans
        if step_spans[span.rank].begin_ns <= span.begin_ns < step_spans[span.rank].end_ns
    ]
    exchanges = sorted(
        (span for span in inside if span.row == "exchange"),
        key=lambda span: span.entered_ns or span.begin_ns,
    )
    by_rank = [[span for span in exchanges if span.rank == rank.rank] for rank in step_spans]
    is_even = len({len(exchanges_of_rank) for exchanges_of_rank in by_rank}) == 1
    collectives = (
        [Collective(ranks=ranks) for ranks in zip(*by_rank, strict=True)] if is_even else []
    )
    return TracedStep(
        begin_ns=min(span.begin_ns for span in step_spans), spans=inside, collectives=collectives
    )


def summarise_traces(
    traces: Traces,
    steps: Mapping[str, Sequence[TracedStep]],
    *,
    whole: Collection[str],
    confidence: float,
) -> TraceFigures:
    """What reports show of traces; ``steps``: by arm; ``whole``: arms that exchange whole gradients
    and nothing else.
    """
    exposed = {
        name: [value for step in steps.get(name, []) if (value := step.exposed_s()) is not None]
        for name in whole
    }
    return TraceFigures(
        arms=[
            TracedArm(
                arm=trace.arm,
                file=trace.file,
                error=trace.error,
                nccl=trace.nccl,
                exposed_s=t_interval(exposed.get(trace.arm, []), confidence=confidence),
            )
            for trace in traces.arms
        ]
    )
