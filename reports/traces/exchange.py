"""From the spans of a trace to steps and their collectives, and how much of the exchange no computing hides.

A collective's ranks come to it one after another; from the last until every rank has the result is its transfer. The n-th
collective of a step is the same on every rank.
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
        return max(one.begin_ns for one in self.ranks)

    @property
    def done_ns(self) -> int:
        """When every rank had the result."""
        return max(one.end_ns for one in self.ranks)

    @property
    def entered_ns(self) -> int | None:
        """When it began to move data, if that is known."""
        known = [one.entered_ns for one in self.ranks if one.entered_ns is not None]
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
        return {one.rank for one in self.spans if one.row == "step"}

    def own_s(self, *beginnings: str) -> float:
        """Mean over ranks of what the library did by itself, of names that begin so; seconds."""
        own = [one for one in self.spans if one.row == "library" and one.name.startswith(beginnings)]
        return sum(one.length_ns for one in own) / len(self.ranks) / 1e9

    def gradients(self, rank: int) -> list[Span]:
        """A rank's gradients, in the order in which they were whole; none where the profiler saw none."""
        own = [one for one in self.spans if one.row == "gradient" and one.rank == rank]
        return sorted(own, key=lambda one: one.end_ns)

    def tail_s(self) -> float | None:
        """Seconds from the last gradient until the last collective was done, mean over ranks; None without gradients."""
        ends = [own[-1].end_ns for rank in self.ranks if (own := self.gradients(rank))]
        done_ns = max((one.done_ns for one in self.collectives), default=0)
        return fmean(max(0, done_ns - end) for end in ends) / 1e9 if ends else None

    def exposed_s(self) -> float | None:
        """Seconds of exchange that no computing hides, mean over ranks: ``tail_s``, and collectives before the first gradient."""
        first_ns = min((one.end_ns for rank in self.ranks for one in self.gradients(rank)), default=0)
        early = sum(span.length_ns for one in self.collectives if one.done_ns < first_ns for span in one.ranks)
        tail_s = self.tail_s()
        return None if tail_s is None else tail_s + early / len(self.ranks) / 1e9


def busy_s(collectives: Sequence[Collective]) -> float:
    """For how long at least one of them was transferred, seconds."""
    busy, until = 0, 0
    for one in sorted(collectives, key=lambda one: one.arrived_ns):
        busy += max(0, one.done_ns - max(one.arrived_ns, until))
        until = max(until, one.done_ns)
    return busy / 1e9


def traced_steps(trace: ArmTrace) -> list[TracedStep]:
    """The steps of an arm that every rank has, in order."""
    by_step: dict[str, list[Span]] = {}
    for one in trace.spans:
        if one.row == "step":
            by_step.setdefault(one.name, []).append(one)
    ranks = {one.rank for one in trace.spans}
    whole = [own for own in by_step.values() if {one.rank for one in own} == ranks]
    return [_step(trace.spans, sorted(own, key=lambda one: one.rank)) for own in sorted(whole, key=lambda own: own[0].begin_ns)]


def _step(spans: Sequence[Span], own: Sequence[Span]) -> TracedStep:
    inside = [one for one in spans if own[one.rank].begin_ns <= one.begin_ns < own[one.rank].end_ns]
    exchanges = sorted((one for one in inside if one.row == "exchange"), key=lambda one: one.entered_ns or one.begin_ns)
    by_rank = [[one for one in exchanges if one.rank == rank.rank] for rank in own]
    alike = len({len(one) for one in by_rank}) == 1
    collectives = [Collective(ranks=ranks) for ranks in zip(*by_rank, strict=True)] if alike else []
    return TracedStep(begin_ns=min(one.begin_ns for one in own), spans=inside, collectives=collectives)


def summarise_traces(
    traces: Traces, steps: Mapping[str, Sequence[TracedStep]], *, whole: Collection[str], confidence: float
) -> TraceFigures:
    """What reports show of traces; ``steps``: by arm; ``whole``: arms that exchange whole gradients and nothing else."""
    exposed = {name: [value for one in steps.get(name, []) if (value := one.exposed_s()) is not None] for name in whole}
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
