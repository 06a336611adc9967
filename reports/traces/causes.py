"""Specific causes beside the terms of a step: what a library does that a setting would change, with its time.

Each rests on what was measured: buffers on the timed steps, all others on the traced ones, which the profiler makes longer.
All of them are in exposed exchange, since steps without exchange do none of it.

=====================  =====================================================================================================
buffers broadcast      what forward takes longer with exchange than without, where DDP broadcasts the model's buffers
gradient copies        what DDP's reducer takes on the training thread to copy gradients into buckets and back
unused-parameter       what the reducer takes to walk the graph
search
small collectives      of the time in which collectives move data, the share of all but one: that many fewer would be needed
cycle waits            from when the last rank submitted a step's last tensor until Horovod began to move it, a cycle at most:
                       what it takes longer is negotiation, or threads without a core
=====================  =====================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import pandas as pd

from reports.schema import ArmSummary, Because, NamedCause, RatioSummary
from reports.statistics.student import t_interval
from reports.traces.exchange import TracedStep

WORTH = 0.01
"""A cause is told of from this share of the step on."""
EXPLAINS = 0.5
"""From this share of a term's difference on, the headline names the cause."""
MANY, SMALL = 8, 64 << 10
"""So many collectives a step, of at most so many bytes on the average, are many small ones."""
REDUCER = "torch.distributed.ddp.reducer::"
COPIES = ("torch::distributed::reducer::", f"{REDUCER}copy_bucket_to_grad")


def with_causes(
    arm: ArmSummary, terms: pd.DataFrame | None, steps: Sequence[TracedStep], *, buffer_bytes: int, confidence: float
) -> ArmSummary:
    """The arm with its causes.

    ``terms``: of ``reports.conclusions.step_terms.terms_by_launch``; None: not known. ``steps``: of its trace.
    """
    if arm.step_terms_s is None or terms is None:
        return arm
    found: list[tuple[str, Sequence[float] | pd.Series, dict[str, object]]] = []
    if arm.backend == "ddp" and arm.options.get("broadcast_buffers", True) and buffer_bytes:
        found.append(("buffers broadcast", terms["in_forward"], {"num_bytes": buffer_bytes, "setting": "broadcast_buffers: false"}))
    if arm.backend == "ddp":
        copies, search = ([step.own_s(*names) for step in steps] for names in (COPIES, (f"{REDUCER}search",)))
        found.append(("unused-parameter search", search, {"setting": "find_unused_parameters: false"}))
        if not arm.options.get("gradient_as_bucket_view"):
            found.append(("gradient copies", copies, {"num_bytes": _exchanged(steps), "setting": "gradient_as_bucket_view: true"}))
    if steps and _are_small(steps):
        count = fmean(len(step.collectives) for step in steps)
        setting = "a larger fusion_threshold_mb" if arm.backend == "horovod" else "a larger bucket_cap_mb"
        apart = [step.busy_s * (1 - 1 / count) for step in steps]
        found.append(("small collectives", apart, {"num_bytes": _exchanged(steps), "count": count, "setting": setting}))
    if arm.backend == "horovod":
        most_s = float(arm.described.get("cycle_time_ms", "inf")) / 1e3
        waits = [min(_cycle_s(step), most_s) for step in steps if step.collectives]
        found.append(("cycle waits", waits, {"setting": "a smaller cycle_time_ms"}))
    causes = [_cause(name, values, told, arm, confidence) for name, values, told in found]
    return arm.model_copy(update={"causes": [one for one in causes if one is not None]})


def _cause(
    name: str, values: Sequence[float] | pd.Series, told: Mapping[str, object], arm: ArmSummary, confidence: float
) -> NamedCause | None:
    """None where it is not shown to take ``WORTH`` of a step."""
    per_step = t_interval(values, confidence=confidence)
    if arm.step_terms_s is None or per_step is None or (per_step.ci_low or 0.0) <= 0:
        return None
    if per_step.value < WORTH * arm.step_terms_s.step.value:
        return None
    return NamedCause.model_validate({"name": name, "term": "exposed_exchange", "per_step_s": per_step, **told})


def _are_small(steps: Sequence[TracedStep]) -> bool:
    counts = [len(step.collectives) for step in steps]
    return min(counts) >= MANY and (_exchanged(steps) or 0) / fmean(counts) <= SMALL


def _exchanged(steps: Sequence[TracedStep]) -> int | None:
    """Bytes of a step's collectives on a rank, mean over steps; None where they are not known."""
    sizes = [[one.ranks[0].num_bytes for one in step.collectives] for step in steps]
    if not sizes or any(size is None for own in sizes for size in own):
        return None
    return round(fmean(sum(size for size in own if size) for own in sizes))


def _cycle_s(step: TracedStep) -> float:
    last = step.collectives[-1]
    return max(0, (last.entered_ns or last.arrived_ns) - last.arrived_ns) / 1e9


def with_named(result: RatioSummary, arms: Mapping[str, ArmSummary]) -> RatioSummary:
    """The ratio, with the cause that explains at least ``EXPLAINS`` of the term that makes the verdict, if one does."""
    because = result.because
    if because is None:
        return result
    more, less = arms[result.candidate], arms[result.baseline]
    if because.difference_s < 0:
        more, less = less, more
    others = {one.name: one.per_step_s.value for one in less.causes}
    apart = {one.name: one.per_step_s.value - others.get(one.name, 0.0) for one in more.causes if one.term == because.term}
    named = max(apart, key=lambda name: apart[name], default=None)
    if named is None or apart[named] < EXPLAINS * abs(because.difference_s):
        return result
    found = next(one for one in more.causes if one.name == named)
    told = {"named": named, "named_s": apart[named], "remedy": f"{found.setting} in {more.name}"}
    return result.model_copy(update={"because": Because.model_validate(because.model_dump() | told)})
