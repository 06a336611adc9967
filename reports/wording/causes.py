"""Why one arm is faster or slower than another, in words: the term of its steps that makes the
difference.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import get_args

from reports.conclusions.step_terms import Bottleneck, bottleneck_of
from reports.schema import (
    ArmSummary,
    DominantCause,
    Estimate,
    Phase,
    RatioSummary,
    StepShares,
    Term,
)
from reports.wording.formatting import bounds_text, listed, milliseconds, with_interval

TERM_NAMES: dict[Term, str] = {
    "compute": "computing",
    "data_wait": "data wait",
    "library_overhead": "library overhead",
    "imbalance": "waiting for the slowest rank",
    "exposed_exchange": "exposed exchange",
    "overhead_and_exchange": "overhead and exchange",
}


SCRIPT_PHASE_NAMES: dict[Phase, str] = {
    "data_wait": "data wait",
    "forward": "forward and all else",
    "backward": "backward with its exchange",
    "exchange": "waiting for exchange",
    "backward_and_exchange": "backward and exchange",
    "optimizer": "the optimizer's step",
}
"""Phases as hooks in a script see them."""
NAMES = dict[str, str]([*TERM_NAMES.items(), *SCRIPT_PHASE_NAMES.items()])


def cause_clause(result: RatioSummary) -> str:
    """What follows the verdict in a sentence, with a comma or semicolon before it; empty where
    nothing is known.

    Such as ``, because it takes 4.6 ms more of each step besides computing and exchange (3.9 to
    5.2); it exposes 3.5 ms less exchange in each step``.
    """
    differences: list[tuple[Term | Phase, Estimate]] = [
        *result.term_differences_s.items(),
        *result.phase_differences_s.items(),
    ]
    by_term = dict(differences)
    if not result.is_decided or not by_term:
        return ""
    cause = result.because
    if cause is None:
        is_known = any(difference.ci_low is not None for difference in by_term.values())
        return f"; no single cause stands out{_parts(result, by_term)}" if is_known else ""
    first = Estimate(value=cause.difference_s, ci_low=cause.ci_low, ci_high=cause.ci_high)
    rest = {
        name: difference
        for name, difference in by_term.items()
        if name != cause.term and difference.excludes(0.0)
    }
    second = max(rest, key=lambda name: abs(rest[name].value), default=None)
    besides = f"; it {_verb(second, rest[second], interval=False)}" if second is not None else ""
    return f", because it {_verb(cause.term, first, interval=True)}{_named_clause(cause)}{besides}"


def _parts(result: RatioSummary, by_term: Mapping[Term | Phase, Estimate]) -> str:
    """The terms that point the way of the verdict, after a colon, the longest first; empty where
    each may be none.
    """
    sign = 1 if result.verdict == "slower" else -1
    parts = [
        f"{milliseconds(abs(difference.value))} ms {NAMES[term]}"
        for term, difference in sorted(by_term.items(), key=lambda item: -sign * item[1].value)
        if difference.excludes(0.0) and sign * difference.value > 0
    ]
    return f": {', '.join(parts)} {'more' if sign > 0 else 'less'} per step" if parts else ""


def _named_clause(cause: DominantCause) -> str:
    """The specific cause, with a semicolon before it; empty where none is known."""
    if cause.named is None:
        return ""
    if cause.gain_s is None:
        remedy = f" ({cause.remedy} changes it)" if cause.remedy else ""
        return f"; {milliseconds(cause.named_s)} ms of that is {cause.named}{remedy}"
    return (
        f"; all of that is {cause.named}, and {cause.remedy} gains {milliseconds(cause.gain_s)} ms"
        " a step"
    )


def short_cause(result: RatioSummary) -> str:
    """The cause in a few words, such as ``3.5 ms less exposed exchange per step``; empty where
    nothing is known.
    """
    cause = result.because
    if cause is None:
        return cause_clause(result).removeprefix("; ").partition(":")[0]
    size = (
        f"{milliseconds(abs(cause.difference_s))} ms {'more' if cause.difference_s > 0 else 'less'}"
    )
    if cause.named:
        return f"{size} {NAMES[cause.term]} per step, most by {cause.named}"
    return f"{size} {NAMES[cause.term]} per step"


def _verb(term: Term | Phase, difference: Estimate, *, interval: bool) -> str:
    """Such as ``exposes 3.5 ms less exchange in each step (3.1 to 3.9)``."""
    more = "more" if difference.value > 0 else "less"
    size = f"{milliseconds(abs(difference.value))} ms"
    longer = f"{size} {'longer' if difference.value > 0 else 'less'}"
    clauses: dict[Term | Phase, str] = {
        "compute": f"computes {longer} in each step",
        "data_wait": f"waits {longer} for data in each step",
        "exchange": f"waits {longer} for exchange in each step",
        "imbalance": f"waits {longer} for its slowest rank in each step",
        "exposed_exchange": f"exposes {size} {more} exchange in each step",
        "library_overhead": f"takes {size} {more} of each step besides computing and exchange",
    }
    words = clauses.get(term) or f"takes {size} {more} of each step in {NAMES[term]}"
    return words + (_bounds(difference) if interval else "")


def trace_sentence(arm: ArmSummary, traced: Estimate | None) -> str | None:
    """Whether a trace exposes as much exchange as timed steps do; None where either is not known.

    No full stop at the end.
    """
    timed = arm.step_terms_s.exposed_exchange if arm.step_terms_s else None
    if traced is None or timed is None:
        return None
    in_trace, in_timed = (with_interval(exposed, milliseconds) for exposed in (traced, timed))
    widths = [
        math.inf if exposed.half_width is None else exposed.half_width
        for exposed in (traced, timed)
    ]
    agree = abs(traced.value - timed.value) <= math.hypot(*widths)
    kept = (
        ""
        if agree
        else (
            ". The profiler changes that arm's steps, so the trace's milliseconds are not those of"
            " timed ones"
        )
    )
    return (
        f"{arm.name} exposes {in_trace} ms of exchange in the trace, and {in_timed} in timed"
        f" steps{kept}"
    )


def _bounds(difference: Estimate) -> str:
    """The interval of the size, in brackets."""
    assert difference.ci_low is not None and difference.ci_high is not None
    low, high = sorted((abs(difference.ci_low), abs(difference.ci_high)))
    return f" ({bounds_text(low, high, milliseconds)})"


def limit_sentence(
    shares: Mapping[str, StepShares], *, hosts: int, unknown: Collection[str] = ()
) -> str | None:
    """What limits each arm; arms with the same limit are named together.

    No full stop at the end; None without arms.

    ``shares``: without the control's. ``hosts``: on a single one there is no network. ``unknown``:
    arms whose limit may be noise (``is_limit_shown``).
    """
    limits = {
        name: "unknown" if name in unknown else bottleneck_of(step_shares)
        for name, step_shares in shares.items()
    }
    parts = []
    for limit in get_args(Bottleneck):
        names = [name for name in limits if limits[name] == limit]
        if names:
            where = "" if len(names) == len(shares) else f" in {listed(names)}"
            parts.append(_clause(limit, where, [shares[name] for name in names], hosts))
    if unknown:
        where = (
            ""
            if len(unknown) == len(shares)
            else f" in {listed([name for name in shares if name in unknown])}"
        )
        parts.append(
            f"What limits the step{where} is not shown: the interval of its longest part besides"
            " computing reaches 0"
        )
    return ". ".join(parts) or None


def _clause(limit: Bottleneck, where: str, shares: Sequence[StepShares], hosts: int) -> str:
    fields = ("data_wait", "exposed_exchange", "library_overhead", "imbalance")
    waiting, exposed, overhead, lost = (
        percents([getattr(step_shares, field) or 0.0 for step_shares in shares]) for field in fields
    )
    with_overhead = any((step_shares.library_overhead or 0.0) >= 0.05 for step_shares in shares)
    what = "The network" if hosts > 1 else "Exchange between ranks of one host"
    clauses: dict[Bottleneck, str] = {
        "data_wait": (
            f"Data loading is the bottleneck{where}: {waiting} of the step is waiting for data;"
            " more loader workers (loader_workers) or a faster data set will help, the network"
            " will not"
        ),
        "exposed_exchange": (
            f"{what} is the bottleneck{where}: {exposed} of the step is exposed exchange, {waiting}"
            " waiting for data"
        ),
        "library_overhead": (
            f"The library is the bottleneck{where}: {overhead} of the step is its overhead besides"
            " exchange"
        ),
        "imbalance": (
            f"Stragglers are the bottleneck{where}: {lost} of the step is waiting for the slowest"
            " rank"
        ),
        "computing": (
            f"Computing takes most of the step{where}: {waiting} is waiting for data, {exposed}"
            f" exposed exchange{f', {overhead} library overhead' if with_overhead else ''}"
        ),
        "not the input": (
            f"Data loading is not the bottleneck{where}: {waiting} of the step is waiting for data "
            "(exposed exchange was not measured)"
        ),
    }
    return clauses[limit]


def percents(shares: Sequence[float]) -> str:
    """Shares as whole percents, from the least to the greatest, such as ``62 to 65%``; noise puts
    none below 0 or above 100.
    """
    low, high = (round(100 * min(max(share, 0.0), 1.0)) for share in (min(shares), max(shares)))
    return f"{low}%" if low == high else f"{low} to {high}%"
