"""Where between a good and a bad state something changed: which state to look at next, for how long, and how sure each answer is.

A state is bad where the upper bound of its throughput over the good one's is below a threshold, and good where the lower bound is
above. The error of 5% is shared out over all states that may be looked at, so that it holds for the whole search; the looks at one
state share what it may spend (``reports.statistics.budget``).
``benchmarks/bisection.py`` simulates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pydantic import BaseModel

ERROR = 0.05
"""The chance that any state of a search is taken for what it is not."""
MAX_SKIPPED = 3
"""States that may be looked at beyond those that a search needs."""
NEARLY_ALL = 0.9
"""Share of the minutes: with more of them left, undecided states are looked at again."""
LOOKS = 2
"""At a state, before the search goes on to others."""


class Seen(BaseModel):
    """What is known of one state."""

    minutes: float = 0.0
    """Spent on it, in all."""
    is_bad: bool | None = None
    """None: not decided."""
    low: float | None = None
    high: float | None = None
    """One-sided bounds of its throughput over the good state's."""
    said: str = ""
    """What was seen, where it is no interval."""

    def more_minutes(self, threshold: float) -> float | None:
        """How many more should decide it, if the estimate stays: the width goes as one over the square root of time."""
        if self.low is None or self.high is None:
            return None
        low, high, limit = math.log(self.low), math.log(self.high), math.log(threshold)
        distance = abs((low + high) / 2 - limit)
        return self.minutes * (((high - low) / 2 / distance) ** 2 - 1) if distance else None


Look = Callable[[int, float], Seen]
"""Looks at a state, by its number, until so many minutes in all were spent on it."""


def steps(last: int) -> int:
    """States that are looked at where the good one is number 0, and none is skipped: the bad one, then half each time."""
    return 1 + math.ceil(math.log2(last))


def confidence(last: int) -> float:
    """Return the confidence of the interval of each state."""
    return 1 - ERROR / (steps(last) + MAX_SKIPPED)


def judged(low: float | None, high: float | None, threshold: float) -> bool | None:
    """Whether a state is bad by its interval; None: it holds the threshold, or there is none."""
    if low is None or high is None or low <= threshold <= high:
        return None
    return high < threshold


def search(last: int, look: Look, known: dict[int, Seen], *, minutes: float) -> tuple[int, int | None]:
    """Return the last state that is known as good, and the first that is known as bad: None where ``last`` is not shown to be.

    ``known``: what is known already, by number; what is seen now is added. ``minutes``: for all states together.
    """
    good, bad = 0, None
    skipped: set[int] = set()
    while True:
        between = range(good + 1, bad) if bad else [last]
        open_to = [at for at in between if at not in skipped and (at in known or len(known) < steps(last) + MAX_SKIPPED)]
        if not open_to:
            again = {at for at in skipped.intersection(between) if known.get(at, Seen()).low is not None}
            if not again or sum(one.minutes for one in known.values()) > NEARLY_ALL * minutes:
                return good, bad
            skipped -= again
            continue
        at = min(open_to, key=lambda one: abs(2 * one - good - (bad or last)))
        seen = _decided(at, look, known, minutes=minutes, left=steps(bad - good) if bad else steps(last))
        if seen.is_bad is None:
            skipped.add(at)
        elif seen.is_bad:
            bad = at
        elif bad is None:
            return good, bad
        else:
            good = at


def _decided(at: int, look: Look, known: dict[int, Seen], *, minutes: float, left: int) -> Seen:
    """Look at a state until it is decided, twice at most: for half its share of what is left, or as long again as before.

    No look begins when the minutes are spent; one that needs more than were left takes them.
    """
    for _ in range(LOOKS):
        seen, rest = known.get(at, Seen()), minutes - sum(one.minutes for one in known.values())
        if seen.is_bad is not None or rest <= 0 or (at in known and seen.low is None):
            break
        known[at] = look(at, seen.minutes + min(max(rest / left / 2, seen.minutes), rest))
    return known.get(at, Seen())
