"""Specific causes beside the terms of a step: what a library does that a setting would change, with its time.

Each rests on what was measured: buffers on the timed steps, all others on the traced ones, which the profiler makes longer.
All of them are in exposed exchange, since steps without exchange do none of it.

=====================  =====================================================================================================
buffers broadcast      what forward takes longer with exchange than without, where DDP broadcasts the model's buffers
gradient copies        what DDP's reducer takes on the training thread to copy gradients into buckets and back
unused-parameter       what the reducer takes to walk the graph
search
small collectives      of the time in which collectives move data, the share of all but one: that many fewer would be needed
late first bucket      where DDP's first bucket waited for gradients that came late: how much sooner the exchange would have ended,
                       had buckets left in the order in which gradients were whole
compression            what it takes to convert gradients before and after their exchange; on the CPU. Beside an arm that is like it
                       but for compression, all by which it exposes more exchange: a CPU sums float16 more slowly, too
sparse gathers         the time in which sparse gradients move
zero-filled gradients  what Horovod's exchange of parameters without a gradient takes after all else was exchanged. The optimizer
                       then steps them, too, which is not in it
cycle waits            from when the last rank submitted a step's last tensor until Horovod began to move it, a cycle at most:
                       what it takes longer is negotiation, or threads without a core
=====================  =====================================================================================================
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

WORTH = 0.01
"""A cause is told of from this share of the step on."""
EXPLAINS = 0.5
"""From this share of a term's difference on, the headline names the cause."""
MANY, SMALL = 8, 64 << 10
"""So many collectives a step, of at most so many bytes on the average, are many small ones."""
REDUCER = "torch.distributed.ddp.reducer::"
SPARSE = ("sparse", "allgather")
"""How names of collectives that move sparse gradients are known."""
DDP, HOROVOD = "ddp", "horovod"
TELLING = {DDP: "bucket_cap_bytes", HOROVOD: "fusion_threshold_bytes"}
"""What a back end tells of itself that is derived from one of these."""
CHANGED_BY = {
    "buffers broadcast": {"broadcast_buffers"},
    "gradient copies": {"gradient_as_bucket_view"},
    "unused-parameter search": {"find_unused_parameters"},
    "small collectives": {"bucket_cap_mb", "first_bucket_mb", "fusion_threshold_mb"},
    COMPRESSION: {"compression", "comm_hook"},
    "cycle waits": {"cycle_time_ms"},
}
"""By cause, options of Horovod and DDP. Arms that differ in nothing else differ by the cause: of it the trace shows a part."""
COPIES = ("torch::distributed::reducer::", f"{REDUCER}copy_bucket_to_grad")


def is_like(arm: ArmSummary, *backends: str) -> bool:
    """Whether an arm is of one of these back ends, or of one that is derived from it."""
    return any(arm.backend == one or TELLING[one] in arm.described for one in backends)


@dataclass(frozen=True)
class Found:
    """What may be a cause: its name, its seconds in each step or launch, and a remedy that was shown to win time back.

    ``benchmarks/remedies.py`` measures remedies; docs/traces.md has the figures.
    """

    name: str
    per_step_s: Sequence[float] | pd.Series
    setting: str | None = None
    num_bytes: int | None = None
    count: float | None = None


def with_causes(
    arm: ArmSummary, terms: pd.DataFrame | None, steps: Sequence[TracedStep], *, buffer_bytes: int, confidence: float
) -> ArmSummary:
    """The arm with its causes.

    ``terms``: of ``reports.conclusions.step_terms.terms_by_launch``; None: not known. ``steps``: of its trace.
    """
    if arm.step_terms_s is None or terms is None:
        return arm
    found = [*_of_any(arm, steps)]
    if is_like(arm, DDP):
        found += _of_ddp(arm, terms, steps, buffer_bytes=buffer_bytes)
    if is_like(arm, HOROVOD):
        found += _of_horovod(arm, steps)
    if is_like(arm, DDP, HOROVOD):  # Horovod 0.28.1 fails with sparse_as_dense on what an embedding gives
        sparse = [[one for one in step.collectives if any(word in one.ranks[0].name for word in SPARSE)] for step in steps]
        found.append(Found("sparse gathers", list(map(busy_s, sparse))))
    causes = [_cause(one, arm, confidence) for one in found]
    return arm.model_copy(update={"causes": [one for one in causes if one is not None]})


def _of_any(arm: ArmSummary, steps: Sequence[TracedStep]) -> Iterator[Found]:
    if steps and _are_small(steps):
        count = fmean(len(step.collectives) for step in steps)
        setting = "a larger fusion_threshold_mb" if is_like(arm, HOROVOD) else "a larger bucket_cap_mb"
        apart = [busy_s(step.collectives) * (1 - 1 / count) for step in steps]
        yield Found("small collectives", apart, setting, num_bytes=_exchanged(steps), count=count)


def _of_ddp(arm: ArmSummary, terms: pd.DataFrame, steps: Sequence[TracedStep], *, buffer_bytes: int) -> Iterator[Found]:
    if arm.options.get("broadcast_buffers", True) and buffer_bytes:
        yield Found("buffers broadcast", terms["in_forward"], "broadcast_buffers: false", num_bytes=buffer_bytes)
    search = [step.own_s(f"{REDUCER}search") for step in steps]
    yield Found("unused-parameter search", search)
    if not arm.options.get("gradient_as_bucket_view"):
        copies = [step.own_s(*COPIES) for step in steps]
        yield Found("gradient copies", copies, num_bytes=_exchanged(steps))
    yield Found("late first bucket", [_late_s(step) for step in steps])
    yield Found(COMPRESSION, [step.own_s(COMPRESSION) for step in steps])


def _of_horovod(arm: ArmSummary, steps: Sequence[TracedStep]) -> Iterator[Found]:
    most_s = float(arm.described.get("cycle_time_ms", "inf")) / 1e3
    waits = [min(_cycle_s(step), most_s) for step in steps if step.collectives]
    yield Found("cycle waits", waits, "a smaller cycle_time_ms")
    yield Found(COMPRESSION, [step.own_s(COMPRESSION) for step in steps], "compression: none")
    yield Found("zero-filled gradients", [_filled_s(step) for step in steps], num_bytes=_filled_bytes(steps))


def _cause(found: Found, arm: ArmSummary, confidence: float) -> NamedCause | None:
    """None where it is not shown to take ``WORTH`` of a step."""
    per_step = t_interval(found.per_step_s, confidence=confidence)
    if arm.step_terms_s is None or per_step is None or (per_step.ci_low or 0.0) <= 0:
        return None
    if per_step.value < WORTH * arm.step_terms_s.step.value:
        return None
    return NamedCause(
        name=found.name,
        term="exposed_exchange",
        per_step_s=per_step,
        num_bytes=found.num_bytes,
        count=found.count,
        setting=found.setting,
    )


def _are_small(steps: Sequence[TracedStep]) -> bool:
    counts = [len(step.collectives) for step in steps]
    return min(counts) >= MANY and (_exchanged(steps) or 0) / fmean(counts) <= SMALL


def _exchanged(steps: Sequence[TracedStep]) -> int | None:
    """Bytes of a step's collectives on a rank, mean over steps; None where they are not known."""
    sizes = [[one.ranks[0].num_bytes for one in step.collectives] for step in steps]
    if not sizes or any(size is None for own in sizes for size in own):
        return None
    return round(fmean(sum(size for size in own if size) for own in sizes))


def _late_s(step: TracedStep) -> float:
    """How much sooner a step's exchange would have ended, had its buckets left in the order in which gradients were whole.

    A bucket of the same size leaves as soon as so many bytes are whole on every rank, and not before the one ahead of it is done;
    each takes its share, by bytes, of the time in which buckets moved.
    """
    buckets = [one for one in step.collectives if "reduce" in one.ranks[0].name and one.ranks[0].num_bytes]
    sizes = [one.ranks[0].num_bytes or 0 for one in buckets]
    gradients = [own for rank in sorted(step.ranks) if (own := step.gradients(rank))]
    if len(buckets) < 2 or not gradients:
        return 0.0
    first, left_ns = sizes[0] / sum(sizes), min(one.begin_ns for one in buckets[0].ranks)
    if any(_whole_ns(own, min(2 * first, 1.0)) > left_ns for own in gradients):
        return 0.0  # it left in order, or nearly so
    busy_ns, end_ns = 1e9 * busy_s(buckets), 0.0
    for size, sent in zip(sizes, accumulate(sizes), strict=True):
        ready_ns = max(_whole_ns(own, sent / sum(sizes)) for own in gradients)
        end_ns = max(ready_ns, end_ns) + busy_ns * size / sum(sizes)
    return max(0.0, max(one.done_ns for one in buckets) - end_ns) / 1e9


def _whole_ns(gradients: Sequence[Span], share: float) -> int:
    """When this share of a rank's gradients was whole, by bytes."""
    whole = list(accumulate(one.num_bytes or 0 for one in gradients))
    return gradients[min(bisect_left(whole, share * whole[-1] - 0.5), len(gradients) - 1)].end_ns


def _filled_s(step: TracedStep) -> float:
    """From when all else was exchanged until the zeros were."""
    filled = [one for one in step.spans if one.name == ZERO_FILLED]
    names = set.intersection(*({name for one in filled if one.rank == rank for name in one.tensors} for rank in step.ranks))
    zeros = [one for one in step.collectives if one.ranks[0].tensors and names.issuperset(one.ranks[0].tensors)]
    if not zeros:
        return 0.0
    others = [one.done_ns for one in step.collectives if one not in zeros]
    begin_ns = max([min(one.begin_ns for one in filled), *others])
    return max(0, max(one.done_ns for one in zeros) - begin_ns) / 1e9


def _filled_bytes(steps: Sequence[TracedStep]) -> int | None:
    """Bytes of the zeros that a rank hands in during a step, mean over ranks and steps."""
    sizes = [sum(one.num_bytes or 0 for one in step.spans if one.name == ZERO_FILLED) / len(step.ranks) for step in steps]
    return round(fmean(sizes)) if sizes else None


def _cycle_s(step: TracedStep) -> float:
    last = step.collectives[-1]
    return max(0, (last.entered_ns or last.arrived_ns) - last.arrived_ns) / 1e9


def with_named(result: RatioSummary, arms: Mapping[str, ArmSummary]) -> RatioSummary:
    """The ratio, with the cause that explains at least ``EXPLAINS`` of the term that makes the verdict, if one does.

    It has no more than the term's time: traced steps are longer than timed ones, and a cause's time with them. Where its own
    option alone sets the arms apart, the term is all its doing, and so is what other terms take longer or less.
    """
    because = result.because
    if because is None:
        return result
    more, less = arms[result.candidate], arms[result.baseline]
    if because.difference_s < 0:
        more, less = less, more
    terms = {"backward", "exchange"} if because.term == "backward_and_exchange" else {because.term}
    others, apart = ({one.name: one.per_step_s.value for one in arm.causes if one.term in terms} for arm in (less, more))
    apart = {name: seconds - others.get(name, 0.0) for name, seconds in apart.items()}
    own = {name for name in apart if _sets_apart(name, more, less)}
    apart |= dict.fromkeys(own, abs(because.difference_s))
    named = max(apart, key=lambda name: apart[name], default=None)
    if named is None or apart[named] < EXPLAINS * abs(because.difference_s):
        return result
    found = next(one for one in more.causes if one.name == named)
    told = {"named": named, "named_s": min(apart[named], abs(because.difference_s))}
    if found.setting is not None:
        told["remedy"] = f"{found.setting} in {more.name}"
    if named in own:
        told["gain_s"] = abs(sum(one.value for one in result.term_differences_s.values()))
    return result.model_copy(update={"because": DominantCause.model_validate(because.model_dump() | told)})


def _sets_apart(name: str, one: ArmSummary, other: ArmSummary) -> bool:
    """Whether the arms differ in the options that change this cause, and in nothing else."""
    likes = [(arm.backend, arm.transport, arm.launcher) for arm in (one, other)]
    names = one.options.keys() | other.options.keys()
    unlike = {option for option in names if one.options.get(option) != other.options.get(option)}
    return likes[0] == likes[1] and bool(unlike) and unlike <= CHANGED_BY.get(name, set())
