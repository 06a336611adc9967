"""Why one arm is faster or slower than another, in words: the term of its steps that makes the
difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from reports.conclusions.step_terms import Bottleneck, bottleneck_of
from reports.schema import Estimate, Phase, RatioSummary, StepShares, Term
from reports.wording.formatting import bounds_text, listed, milliseconds

TERM_NAMES: dict[Term, str] = {
    "compute": "computing",
    "data_wait": "data wait",
    "library_overhead": "library overhead",
    "imbalance": "waiting for the slowest rank",
    "exposed_exchange": "exposed exchange",
    "overhead_and_exchange": "overhead and exchange",
}
PHASE_NAMES: dict[Phase, str] = {
    "data_wait": "data wait",
    "forward": "forward",
    "backward": "backward",
    "exchange": "waiting for exchange",
    "optimizer": "optimizer",
}
NAMES = dict[str, str]([*TERM_NAMES.items(), *PHASE_NAMES.items()]) | {
    "backward_and_exchange": "backward and exchange"
}


MIN_NAMED = 0.05
"""A share of the step from which a term is named beside computing, where that takes most."""


def cause_clause(result: RatioSummary) -> str:
    """What follows the verdict in a sentence, with a comma or semicolon before it; empty where
    nothing is known.

    Such as ``, because of 3.50 ms less exposed exchange per step (3.10 to 3.90)``.
    """
    differences: dict[Term | Phase, Estimate] = dict(
        [*result.term_differences_s.items(), *result.phase_differences_s.items()]
    )
    if not result.is_decided or all(part.ci_low is None for part in differences.values()):
        return ""
    cause = result.because
    if cause is None:
        sign = 1 if result.verdict == "slower" else -1
        parts = [
            size_of(term, difference.value)
            for term, difference in sorted(
                differences.items(), key=lambda part: -sign * part[1].value
            )
            if difference.excludes(0.0) and sign * difference.value > 0
        ]
        return "; no single cause stands out" + (f": {', '.join(parts)} per step" if parts else "")
    low, high = sorted((abs(cause.ci_low), abs(cause.ci_high)))
    remedy = f" ({cause.remedy} changes it)" if cause.remedy else ""
    named = f"; {milliseconds(cause.named_s)} ms of that is {cause.named}{remedy}" * bool(
        cause.named
    )
    against = [
        (term, difference.value)
        for term, difference in differences.items()
        if difference.excludes(0.0) and difference.value * cause.difference_s < 0
    ]
    but = ""
    if against:
        but = f"; against that, {size_of(*max(against, key=lambda part: abs(part[1])))}"
    return (
        f", because of {size_of(cause.term, cause.difference_s)} per step"
        f" ({bounds_text(low, high, milliseconds)}){named}{but}"
    )


def short_cause(result: RatioSummary) -> str:
    """The cause in a few words, such as ``3.5 ms less exposed exchange per step``; empty where
    nothing is known.
    """
    cause = result.because
    if cause is None:
        return cause_clause(result).removeprefix("; ").partition(":")[0]
    named = f", most by {cause.named}" * bool(cause.named)
    return f"{size_of(cause.term, cause.difference_s)} per step{named}"


def size_of(term: Term | Phase, difference_s: float) -> str:
    """Such as ``3.50 ms less exposed exchange``."""
    more = "more" if difference_s > 0 else "less"
    return f"{milliseconds(abs(difference_s))} ms {more} {NAMES[term]}"


def limit_sentence(shares: Mapping[str, StepShares]) -> str | None:
    """What limits each arm; arms with the same limit are named together.

    No full stop at the end; None without arms.
    """
    limits = {name: bottleneck_of(step_shares) for name, step_shares in shares.items()}
    sentences = []
    for limit in get_args(Bottleneck):
        names = [name for name in limits if limits[name] == limit]
        if names:
            of_names = [shares[name] for name in names]
            sentences.append(_limit_words(limit, listed(names), of_names))
    return ". ".join(sentences) or None


def _limit_words(limit: Bottleneck, names: str, shares: Sequence[StepShares]) -> str:
    if limit in NAMES:
        of_step = percents([getattr(step_shares, limit) for step_shares in shares])
        return f"The bottleneck in {names} is {NAMES[limit]}: {of_step} of the step"
    waiting = percents([step_shares.data_wait for step_shares in shares])
    if limit == "not the input":
        return f"Data loading is not the bottleneck in {names}: {waiting} of the step is data wait"
    parts = [f"{waiting} is waiting for data"]
    others: tuple[Term, ...] = ("exposed_exchange", "library_overhead", "imbalance")
    for term in others:
        by_arm = [getattr(step_shares, term) or 0.0 for step_shares in shares]
        if term == "exposed_exchange" or max(by_arm) >= MIN_NAMED:
            parts.append(f"{percents(by_arm)} {TERM_NAMES[term]}")
    return f"Computing takes most of the step in {names}: {', '.join(parts)}"


def percents(shares: Sequence[float]) -> str:
    """Shares as whole percents, from the least to the greatest, such as ``62 to 65%``; noise puts
    none below 0 or above 100.
    """
    low, high = (round(100 * min(max(share, 0.0), 1.0)) for share in (min(shares), max(shares)))
    return f"{low}%" if low == high else f"{low} to {high}%"
