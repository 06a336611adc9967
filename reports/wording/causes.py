"""Why one arm is faster or slower than another, in words: the term of its steps that makes the difference."""

from __future__ import annotations

from reports.schema import Estimate, RatioSummary, Term
from reports.wording.formatting import milliseconds

TERM_NAMES: dict[Term, str] = {
    "compute": "computing",
    "data_wait": "data wait",
    "library_overhead": "library overhead",
    "imbalance": "imbalance",
    "exposed_exchange": "exposed exchange",
}


def because_clause(result: RatioSummary) -> str:
    """What follows the verdict in a sentence, with a comma or semicolon before it; empty where nothing is known.

    Such as ``, because its threads hold the training thread up for 4.6 ms of each step (3.9 to 5.2); it exposes 3.5 ms less
    exchange``.
    """
    if result.verdict not in ("faster", "slower") or not result.term_differences_s:
        return ""
    cause = result.because
    if cause is None:
        return "; no single cause stands out" if any(one.ci_low is not None for one in result.term_differences_s.values()) else ""
    first = Estimate(value=cause.difference_s, ci_low=cause.ci_low, ci_high=cause.ci_high)
    rest = {name: one for name, one in result.term_differences_s.items() if name != cause.term and one.excludes(0.0)}
    second = max(rest, key=lambda name: abs(rest[name].value), default=None)
    besides = f"; it {_verb(result, second, rest[second], interval=False)}" if second is not None else ""
    return f", because {_subject(result, cause.term)} {_verb(result, cause.term, first, interval=True)}{besides}"


def _threads_hold_up(result: RatioSummary, term: Term) -> bool:
    """Whether an overhead is mostly its own threads' taking the core."""
    overhead = result.term_differences_s.get("library_overhead")
    held = result.held_up_s
    return term == "library_overhead" and overhead is not None and held is not None and held.value > overhead.value / 2 > 0


def _subject(result: RatioSummary, term: Term) -> str:
    return "its threads" if _threads_hold_up(result, term) else "it"


def _verb(result: RatioSummary, term: Term, difference: Estimate, *, interval: bool) -> str:
    """Such as ``exposes 3.5 ms less exchange in each step (3.1 to 3.9)``."""
    more = "more" if difference.value > 0 else "less"
    size = milliseconds(abs(difference.value))
    bounds = _bounds(difference) if interval else ""
    match term:
        case "compute":
            return f"computes {size} ms {'longer' if difference.value > 0 else 'less'} in each step{bounds}"
        case "data_wait":
            return f"waits {size} ms {'longer' if difference.value > 0 else 'less'} for data in each step{bounds}"
        case "imbalance":
            return f"loses {size} ms {more} to unlike ranks in each step{bounds}"
        case "exposed_exchange":
            return f"exposes {size} ms {more} exchange in each step{bounds}"
    if interval and _threads_hold_up(result, term):
        return f"hold the training thread up: {size} ms more of each step besides exchange{bounds}"
    return f"takes {size} ms {more} of each step besides computing and exchange{bounds}"


def _bounds(difference: Estimate) -> str:
    """The interval of the size, in brackets."""
    assert difference.ci_low is not None and difference.ci_high is not None
    low, high = sorted((abs(difference.ci_low), abs(difference.ci_high)))
    return f" ({milliseconds(low)} to {milliseconds(high)})"
