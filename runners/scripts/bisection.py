"""Bisection between a good and a bad state: which state to look at next, for how long, and with
which confidence.

A state is bad if the upper bound of its throughput over the good one's is below a threshold, and
good if the lower bound is above. The error of 5% is divided among all states that may be looked at,
so that it holds for the whole search. Looks at one state share its error
(``reports.statistics.budget``). ``benchmarks/bisection.py`` simulates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pydantic import BaseModel

ERROR = 0.05
"""The probability that any state of a search is judged wrongly."""
MAX_SKIPPED = 3
"""States that may be looked at beyond those that a search needs."""
NEARLY_ALL = 0.9
"""Share of the minutes: if less is spent, undecided states are looked at again."""
LOOKS = 2
"""At a state, before the search goes on to others."""


class Seen(BaseModel):
    """The result for one state."""

    minutes: float = 0.0
    """Spent on it in all."""
    is_bad: bool | None = None
    """None: not decided."""
    low: float | None = None
    high: float | None = None
    """One-sided bounds of its throughput over the good state's."""
    said: str = ""
    """The result in words, if there is no interval."""


Look = Callable[[int, float], Seen]
"""Looks at a state, by its number, until this many minutes in all were spent on it."""


def steps(last: int) -> int:
    """The number of states to look at if none is skipped: number ``last``, then half of the
    interval each time.
    """
    return 1 + math.ceil(math.log2(last))


def confidence(last: int) -> float:
    """Return the confidence of the interval of each state."""
    return 1 - ERROR / (steps(last) + MAX_SKIPPED)


def judged(low: float | None, high: float | None, threshold: float) -> bool | None:
    """Whether a state is bad by its interval; None: the threshold is in it, or there is no
    interval.
    """
    if low is None or high is None or low <= threshold <= high:
        return None
    return high < threshold


def search(
    last: int, look: Look, results: dict[int, Seen], *, minutes: float
) -> tuple[int, int | None]:
    """Return the last state known as good and the first known as bad, which is None if ``last`` is
    not shown to be bad.

    ``results``: results by number, to which new ones are added. ``minutes``: for all states
    together.
    """
    good, bad = 0, None
    skipped: set[int] = set()
    while True:
        between = range(good + 1, bad) if bad else [last]
        open_to = [
            at
            for at in between
            if at not in skipped and (at in results or len(results) < steps(last) + MAX_SKIPPED)
        ]
        if not open_to:
            again = {
                at
                for at in skipped.intersection(between)
                if results.get(at, Seen()).low is not None
            }
            if not again or sum(state.minutes for state in results.values()) > NEARLY_ALL * minutes:
                return good, bad
            skipped -= again
            continue
        at = min(open_to, key=lambda number: abs(2 * number - good - (bad or last)))
        seen = _decided(
            at, look, results, minutes=minutes, left=steps(bad - good) if bad else steps(last)
        )
        if seen.is_bad is None:
            skipped.add(at)
        elif seen.is_bad:
            bad = at
        elif bad is None:
            return good, bad
        else:
            good = at


def _decided(at: int, look: Look, results: dict[int, Seen], *, minutes: float, left: int) -> Seen:
    """Look at a state until it is decided, at most twice: for half its share of the rest, or as
    long as before.

    No look begins when the minutes are spent.
    """
    for _ in range(LOOKS):
        seen, rest = (
            results.get(at, Seen()),
            minutes - sum(state.minutes for state in results.values()),
        )
        if seen.is_bad is not None or rest <= 0 or (at in results and seen.low is None):
            break
        results[at] = look(at, seen.minutes + min(max(rest / left / 2, seen.minutes), rest))
    return results.get(at, Seen())
