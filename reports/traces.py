"""Traced steps with their collectives, and specific causes beside the terms of a step: what a
library does that a setting would change, with its time.

A collective's ranks come to it one after another; from the last until every rank has the result is
its transfer. The n-th collective of a step is the same on every rank.

A cause rests on what was measured: buffers on the timed steps, all others on the traced ones, which
the profiler makes longer. All of them are in exposed exchange, since steps without exchange do none
of it.

- buffers broadcast: what forward takes longer with exchange than without, where DDP broadcasts the
  model's buffers.
- gradient copies: what DDP's reducer takes on the training thread to copy gradients into buckets
  and back.
- unused-parameter search: what the reducer takes to walk the graph.
- small collectives: of the time in which collectives move data, the share of all but one: that many
  fewer would be needed.
- cycle waits: from when the last rank submitted a step's last tensor until Horovod began to move
  it, a cycle at most. What it takes longer is negotiation, or threads without a core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean
from typing import Any

import pandas as pd

from measurement.records.record import ArmTrace, Span
from reports.schema import ArmSummary, NamedCause, RatioSummary
from reports.statistics.student import t_interval

MIN_CAUSE_SHARE = 0.01
"""A cause is reported from this share of the step on."""
MIN_EXPLAINED_SHARE = 0.5
"""From this share of a term's difference on, the headline names the cause."""
MIN_SMALL_COLLECTIVES, MAX_SMALL_BYTES = 8, 64 << 10
"""So many collectives a step, of at most so many bytes on the average, are many small ones."""
REDUCER = "torch.distributed.ddp.reducer::"
DERIVED_SETTING = {"ddp": "bucket_cap_bytes", "horovod": "fusion_threshold_bytes"}
"""What a backend reports of itself if it derives from one of these."""
COPIES = ("torch::distributed::reducer::", f"{REDUCER}copy_bucket_to_grad")


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


def with_causes(
    arm: ArmSummary,
    terms: pd.DataFrame | None,
    steps: Sequence[TracedStep],
    *,
    buffer_bytes: int,
    confidence: float,
) -> ArmSummary:
    """The arm with its causes.

    ``terms``: of ``reports.conclusions.step_terms.terms_by_launch``; None: not known. ``steps``: of
    its trace.
    """
    if arm.step_terms_s is None or terms is None:
        return arm
    least_s = MIN_CAUSE_SHARE * arm.step_terms_s.step.value
    causes = []
    for name, seconds, more in _candidates(arm, terms, steps, buffer_bytes=buffer_bytes):
        per_step_s = t_interval(seconds, confidence=confidence)
        if per_step_s and (per_step_s.ci_low or 0.0) > 0 and per_step_s.value >= least_s:
            fields = {"setting": None, **more}
            causes.append(
                NamedCause(name=name, term="exposed_exchange", per_step_s=per_step_s, **fields)
            )
    return arm.model_copy(update={"causes": causes})


def _candidates(
    arm: ArmSummary, terms: pd.DataFrame, steps: Sequence[TracedStep], *, buffer_bytes: int
) -> Iterator[tuple[str, Sequence[float] | pd.Series, dict[str, Any]]]:
    """What may be a cause: its name, its seconds in each step or launch, and fields of
    ``NamedCause``, such as a setting that was shown to win time back.

    ``benchmarks/remedies.py`` measures remedies; docs/traces.md has the figures.
    """
    is_ddp, is_horovod = (
        arm.backend == backend or setting in arm.described
        for backend, setting in DERIVED_SETTING.items()
    )
    size, count = _exchanged(steps), fmean([len(step.collectives) for step in steps] or [0])
    if count >= MIN_SMALL_COLLECTIVES and (size or 0) / count <= MAX_SMALL_BYTES:
        setting = f"a larger {'fusion_threshold_mb' if is_horovod else 'bucket_cap_mb'}"
        seconds = [busy_s(step.collectives) * (1 - 1 / count) for step in steps]
        yield "small collectives", seconds, {"setting": setting, "num_bytes": size, "count": count}
    if is_ddp:
        if arm.options.get("broadcast_buffers", True) and buffer_bytes:
            fields = {"setting": "broadcast_buffers: false", "num_bytes": buffer_bytes}
            yield "buffers broadcast", terms["in_forward"], fields
        search = [step.own_s(f"{REDUCER}search") for step in steps]
        yield "unused-parameter search", search, {}
        if not arm.options.get("gradient_as_bucket_view"):
            copies = [step.own_s(*COPIES) for step in steps]
            yield "gradient copies", copies, {"num_bytes": size}
    if is_horovod:
        most_s = float(arm.described.get("cycle_time_ms", "inf")) / 1e3
        waits = [
            min(max(0, (last.entered_ns or last.arrived_ns) - last.arrived_ns) / 1e9, most_s)
            for step in steps
            for last in step.collectives[-1:]
        ]
        yield "cycle waits", waits, {"setting": "a smaller cycle_time_ms"}


def _exchanged(steps: Sequence[TracedStep]) -> int | None:
    """Bytes of a step's collectives on a rank, mean over steps; None where they are not known."""
    sizes = [[collective.ranks[0].num_bytes for collective in step.collectives] for step in steps]
    if not sizes or any(size is None for step_sizes in sizes for size in step_sizes):
        return None
    return round(fmean(sum(size for size in step_sizes if size) for step_sizes in sizes))


def with_named_cause(result: RatioSummary, arms: Mapping[str, ArmSummary]) -> RatioSummary:
    """The ratio, with the cause that explains at least ``MIN_EXPLAINED_SHARE`` of the term that
    makes the verdict, if one does.

    It has no more than the term's time: traced steps are longer than timed ones, and a cause's time
    with them.
    """
    because = result.because
    if because is None:
        return result
    more, less = arms[result.candidate], arms[result.baseline]
    if because.difference_s < 0:
        more, less = less, more
    both = {
        "backward_and_exchange": {"backward", "exchange"},
        "overhead_and_exchange": {"library_overhead", "exposed_exchange"},
    }
    terms = both.get(because.term, {because.term})
    others = {cause.name: cause.per_step_s.value for cause in less.causes}
    excess = [
        (cause.per_step_s.value - others.get(cause.name, 0.0), cause)
        for cause in more.causes
        if cause.term in terms
    ]
    seconds, cause = max(excess, key=itemgetter(0), default=(0.0, None))
    if cause is None or seconds < MIN_EXPLAINED_SHARE * abs(because.difference_s):
        return result
    fields = {
        "named": cause.name,
        "named_s": min(seconds, abs(because.difference_s)),
        "remedy": cause.setting and f"{cause.setting} in {more.name}",
    }
    return result.model_copy(update={"because": because.model_copy(update=fields)})
