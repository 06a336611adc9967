"""Verdicts before the last launch, to decide whether to measure on, and what they cost: every analysis may be the lucky one.

Analysis j may spend 1 / (j (j + 1)) of the promised error, which sums to 1 over any number of them
(``reports.statistics.intervals``). They come after 5, 7, 10, 14, 20, ... launches: few launches tell their own variance badly,
and an analysis after each would cost more than it brings. A comparison of a fixed number of launches spends all of it on its only
analysis; whoever then measures on spends more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FIRST = 5
GROWTH = 1.4


def error_share(analyses: Sequence[int], *, until_decided: bool) -> float:
    """The share of the error that the last analysis may spend.

    ``until_decided``: whether it was planned to analyse again if need be.
    """
    number = max(len(analyses), 1)
    return 1.0 if number == 1 and not until_decided else 1 / (number * (number + 1))


def next_analysis(analyses: Sequence[int], *, launches: int) -> int:
    """The number of launches at the next analysis. ``launches`` is the plan's number, before which there is nothing to decide."""
    return max(FIRST, launches) if not analyses else max(math.ceil(GROWTH * analyses[-1]), launches)
