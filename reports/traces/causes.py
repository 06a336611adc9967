"""Specific causes beside the terms of a step: what a library does that a setting would change, with
its time.

Each rests on what was measured: buffers on the timed steps, all others on the traced ones, which
the profiler makes longer. All of them are in exposed exchange, since steps without exchange do none
of it.

- buffers broadcast: what forward takes longer with exchange than without, where DDP broadcasts the
  model's buffers.
- gradient copies: what DDP's reducer takes on the training thread to copy gradients into buckets
  and back.
- unused-parameter search: what the reducer takes to walk the graph.
- small collectives: of the time in which collectives move data, the share of all but one: that many
  fewer would be needed.
- late first bucket: where DDP's first bucket waited for gradients that came late: how much sooner
  the exchange would have ended, had buckets left in the order in which gradients were whole.
- compression: what it takes to convert gradients before and after their exchange. On the CPU,
  beside an arm that is like it but for compression, all by which it exposes more exchange: a CPU
  sums float16 more slowly, too.
- sparse gathers: the time in which sparse gradients move.
- zero-filled gradients: what Horovod's exchange of parameters without a gradient takes after all
  else was exchanged. The optimizer then steps them, too, which is not in it.
- cycle waits: from when the last rank submitted a step's last tensor until Horovod began to move
  it, a cycle at most. What it takes longer is negotiation, or threads without a core.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

import pandas as pd

from measurement.records.trace import COMPRESSION, ZERO_FILLED, Span
from reports.schema import ArmSummary, DominantCause, NamedCause, RatioSummary
from reports.statistics.student import t_interval
from reports.traces.exchange import TracedStep, busy_s

MIN_CAUSE_SHARE = 0.01
"""A cause is reported from this share of the step on."""
MIN_EXPLAINED_SHARE = 0.5
"""From this share of a term's difference on, the headline names the cause."""
MIN_SMALL_COLLECTIVES, MAX_SMALL_BYTES = 8, 64 << 10
"""So many collectives a step, of at most so many bytes on the average, are many small ones."""
REDUCER = "torch.distributed.ddp.reducer::"
SPARSE = ("sparse", "allgather")
"""How names of collectives that move sparse gradients are known."""
DDP, HOROVOD = "ddp", "horovod"
DERIVED_SETTING = {DDP: "bucket_cap_bytes", HOROVOD: "fusion_threshold_bytes"}
"""What a backend reports of itself if it derives from one of these."""
CHANGED_BY = {
    "buffers broadcast": {"broadcast_buffers"},
    "gradient copies": {"gradient_as_bucket_view"},
    "unused-parameter search": {"find_unused_parameters"},
    "small collectives": {"bucket_cap_mb", "first_bucket_mb", "fusion_threshold_mb"},
    COMPRESSION: {"compression", "comm_hook"},
    "cycle waits": {"cycle_time_ms"},
}
"""By cause, options of Horovod and DDP. Where arms differ in nothing else, the cause explains all;
a trace shows a part of it."""
COPIES = ("torch::distributed::reducer::", f"{REDUCER}copy_bucket_to_grad")


def derives_from(arm: ArmSummary, *backends: str) -> bool:
    """Whether an arm has one of these backends, or one that derives from it."""
    return any(
        arm.backend == backend or DERIVED_SETTING[backend] in arm.described for backend in backends
    )


@dataclass(frozen=True)
class CauseCandidate:
    """What may be a cause: its name, its seconds in each step or launch, and a remedy that was
    shown to win time back.

    ``benchmarks/remedies.py`` measures remedies; docs/traces.md has the figures.
    """

    name: str
    per_step_s: Sequence[float] | pd.Series
    setting: str | None = None
    num_bytes: int | None = None
    count: float | None = None


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
    candidates = [*_common_causes(arm, steps)]
    if derives_from(arm, DDP):
        candidates += _ddp_causes(arm, terms, steps, buffer_bytes=buffer_bytes)
    if derives_from(arm, HOROVOD):
        candidates += _horovod_causes(arm, steps)
    # Horovod 0.28.1 fails with sparse_as_dense on what an embedding gives
    if derives_from(arm, DDP, HOROVOD):
        sparse = [
            [
                collective
                for collective in step.collectives
                if any(word in collective.ranks[0].name for word in SPARSE)
            ]
            for step in steps
        ]
        candidates.append(CauseCandidate("sparse gathers", list(map(busy_s, sparse))))
    causes = [_named_cause(candidate, arm, confidence) for candidate in candidates]
    return arm.model_copy(update={"causes": [cause for cause in causes if cause is not None]})


def _common_causes(arm: ArmSummary, steps: Sequence[TracedStep]) -> Iterator[CauseCandidate]:
    counts, size = [len(step.collectives) for step in steps], _exchanged(steps)
    if (
        steps
        and min(counts) >= MIN_SMALL_COLLECTIVES
        and (size or 0) / fmean(counts) <= MAX_SMALL_BYTES
    ):
        count = fmean(counts)
        setting = (
            "a larger fusion_threshold_mb"
            if derives_from(arm, HOROVOD)
            else "a larger bucket_cap_mb"
        )
        seconds = [busy_s(step.collectives) * (1 - 1 / count) for step in steps]
        yield CauseCandidate("small collectives", seconds, setting, num_bytes=size, count=count)


def _ddp_causes(
    arm: ArmSummary, terms: pd.DataFrame, steps: Sequence[TracedStep], *, buffer_bytes: int
) -> Iterator[CauseCandidate]:
    if arm.options.get("broadcast_buffers", True) and buffer_bytes:
        yield CauseCandidate(
            "buffers broadcast",
            terms["in_forward"],
            "broadcast_buffers: false",
            num_bytes=buffer_bytes,
        )
    search = [step.own_s(f"{REDUCER}search") for step in steps]
    yield CauseCandidate("unused-parameter search", search)
    if not arm.options.get("gradient_as_bucket_view"):
        copies = [step.own_s(*COPIES) for step in steps]
        yield CauseCandidate("gradient copies", copies, num_bytes=_exchanged(steps))
    yield CauseCandidate("late first bucket", [_late_s(step) for step in steps])
    yield CauseCandidate(COMPRESSION, [step.own_s(COMPRESSION) for step in steps])


def _horovod_causes(arm: ArmSummary, steps: Sequence[TracedStep]) -> Iterator[CauseCandidate]:
    most_s = float(arm.described.get("cycle_time_ms", "inf")) / 1e3
    lasts = [step.collectives[-1] for step in steps if step.collectives]
    waits = [
        min(max(0, (last.entered_ns or last.arrived_ns) - last.arrived_ns) / 1e9, most_s)
        for last in lasts
    ]
    yield CauseCandidate("cycle waits", waits, "a smaller cycle_time_ms")
    yield CauseCandidate(
        COMPRESSION, [step.own_s(COMPRESSION) for step in steps], "compression: none"
    )
    yield CauseCandidate(
        "zero-filled gradients", [_filled_s(step) for step in steps], num_bytes=_filled_bytes(steps)
    )


def _named_cause(
    candidate: CauseCandidate, arm: ArmSummary, confidence: float
) -> NamedCause | None:
    """None where it is not shown to take ``MIN_CAUSE_SHARE`` of a step."""
    per_step = t_interval(candidate.per_step_s, confidence=confidence)
    if arm.step_terms_s is None or per_step is None or (per_step.ci_low or 0.0) <= 0:
        return None
    if per_step.value < MIN_CAUSE_SHARE * arm.step_terms_s.step.value:
        return None
    return NamedCause(
        name=candidate.name,
        term="exposed_exchange",
        per_step_s=per_step,
        num_bytes=candidate.num_bytes,
        count=candidate.count,
        setting=candidate.setting,
    )


def _exchanged(steps: Sequence[TracedStep]) -> int | None:
    """Bytes of a step's collectives on a rank, mean over steps; None where they are not known."""
    sizes = [[collective.ranks[0].num_bytes for collective in step.collectives] for step in steps]
    if not sizes or any(size is None for step_sizes in sizes for size in step_sizes):
        return None
    return round(fmean(sum(size for size in step_sizes if size) for step_sizes in sizes))


def _late_s(step: TracedStep) -> float:
    """How much sooner a step's exchange would have ended, had its buckets left in the order in
    which gradients were whole.

    A bucket of the same size leaves as soon as so many bytes are whole on every rank, and not
    before the one ahead of it is done; each takes its share, by bytes, of the time in which buckets
    moved.
    """
    buckets = [
        collective
        for collective in step.collectives
        if "reduce" in collective.ranks[0].name and collective.ranks[0].num_bytes
    ]
    sizes = [bucket.ranks[0].num_bytes or 0 for bucket in buckets]
    gradients = [
        gradients_of_rank
        for rank in sorted(step.ranks)
        if (gradients_of_rank := step.gradients(rank))
    ]
    if len(buckets) < 2 or not gradients:
        return 0.0
    first, left_ns = sizes[0] / sum(sizes), min(span.begin_ns for span in buckets[0].ranks)
    if any(
        _whole_ns(rank_gradients, min(2 * first, 1.0)) > left_ns for rank_gradients in gradients
    ):
        return 0.0  # it left in order, or nearly so
    busy_ns, end_ns = 1e9 * busy_s(buckets), 0.0
    for size, sent in zip(sizes, accumulate(sizes), strict=True):
        ready_ns = max(_whole_ns(rank_gradients, sent / sum(sizes)) for rank_gradients in gradients)
        end_ns = max(ready_ns, end_ns) + busy_ns * size / sum(sizes)
    return max(0.0, max(bucket.done_ns for bucket in buckets) - end_ns) / 1e9


def _whole_ns(gradients: Sequence[Span], share: float) -> int:
    """When this share of a rank's gradients was whole, by bytes."""
    whole = list(accumulate(gradient.num_bytes or 0 for gradient in gradients))
    return gradients[min(bisect_left(whole, share * whole[-1] - 0.5), len(gradients) - 1)].end_ns


def _filled_s(step: TracedStep) -> float:
    """From when all else was exchanged until the zeros were."""
    filled = [span for span in step.spans if span.name == ZERO_FILLED]
    names = set.intersection(
        *(
            {name for span in filled if span.rank == rank for name in span.tensors}
            for rank in step.ranks
        )
    )
    zeros = [
        collective
        for collective in step.collectives
        if collective.ranks[0].tensors and names.issuperset(collective.ranks[0].tensors)
    ]
    if not zeros:
        return 0.0
    others = [collective.done_ns for collective in step.collectives if collective not in zeros]
    begin_ns = max([min(span.begin_ns for span in filled), *others])
    return max(0, max(collective.done_ns for collective in zeros) - begin_ns) / 1e9


def _filled_bytes(steps: Sequence[TracedStep]) -> int | None:
    """Bytes of the zeros that a rank hands in during a step, mean over ranks and steps."""
    sizes = [
        sum(span.num_bytes or 0 for span in step.spans if span.name == ZERO_FILLED)
        / len(step.ranks)
        for step in steps
    ]
    return round(fmean(sizes)) if sizes else None


def with_named_cause(result: RatioSummary, arms: Mapping[str, ArmSummary]) -> RatioSummary:
    """The ratio, with the cause that explains at least ``MIN_EXPLAINED_SHARE`` of the term that
    makes the verdict, if one does.

    It has no more than the term's time: traced steps are longer than timed ones, and a cause's time
    with them. Where its own option is all that the arms differ in, it explains the whole term, and
    the changes of other terms.
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
    others, excess = (
        {cause.name: cause.per_step_s.value for cause in arm.causes if cause.term in terms}
        for arm in (less, more)
    )
    excess = {name: seconds - others.get(name, 0.0) for name, seconds in excess.items()}
    sole = {name for name in excess if _sets_apart(name, more, less)}
    excess |= dict.fromkeys(sole, abs(because.difference_s))
    named = max(excess, key=lambda name: excess[name], default=None)
    if named is None or excess[named] < MIN_EXPLAINED_SHARE * abs(because.difference_s):
        return result
    cause = next(cause for cause in more.causes if cause.name == named)
    fields = {"named": named, "named_s": min(excess[named], abs(because.difference_s))}
    if cause.setting is not None:
        fields["remedy"] = f"{cause.setting} in {more.name}"
    if named in sole:
        fields["gain_s"] = abs(sum(term.value for term in result.term_differences_s.values()))
    return result.model_copy(
        update={"because": DominantCause.model_validate(because.model_dump() | fields)}
    )


def _sets_apart(name: str, ours: ArmSummary, other: ArmSummary) -> bool:
    """Whether the arms differ in the options that change this cause, and in nothing else."""
    likes = [(arm.backend, arm.transport, arm.launcher) for arm in (ours, other)]
    names = ours.options.keys() | other.options.keys()
    unlike = {option for option in names if ours.options.get(option) != other.options.get(option)}
    return likes[0] == likes[1] and bool(unlike) and unlike <= CHANGED_BY.get(name, set())
