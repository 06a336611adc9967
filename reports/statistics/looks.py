"""How often a comparison was looked at to decide whether to measure on, and what that costs: every look may be the lucky one.

Look j may spend 1 / (j (j + 1)) of the promised error, which sums to 1 over any number of looks
(``reports.statistics.intervals``). Looks come after 5, 7, 10, 14, 20, ... launches: few launches tell their own variance badly,
and a look after each would cost more than it brings. A comparison of a fixed number of launches spends all of it on its only
look; whoever then measures on spends more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FIRST = 5
GROWTH = 1.4


def error_share(looks: Sequence[int], *, until_decided: bool) -> float:
    """The share of the error that the last look may spend.

    Args:
        looks: the number of launches at each look so far, this one included.
        until_decided: whether it was planned to look again if need be.
    """
    number = max(len(looks), 1)
    return 1.0 if number == 1 and not until_decided else 1 / (number * (number + 1))


def next_look(looks: Sequence[int], *, launches: int) -> int:
    """After how many launches to look next. ``launches`` is the plan's number, before which there is nothing to decide."""
    return max(FIRST, launches) if not looks else max(math.ceil(GROWTH * looks[-1]), launches)
