"""Rates of network links, as plans and ``tc`` write them: 100kbit, 2.5gbit."""

from __future__ import annotations

import re

UNSHAPED = "unshaped"
"""In a plan: the links are not slowed down."""
UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
SLOWEST_BITS_PER_S, FASTEST_BITS_PER_S = 10**5, 10**11
_RATE = re.compile(rf"(?P<number>[0-9]{{1,9}}(\.[0-9]{{1,9}})?)(?P<unit>{'|'.join(UNITS)})")


def parse_rate(text: str) -> int:
    """Bits per second.

    Raises:
        ValueError: the text is no rate, or one that cannot be shaped.
    """
    parts = _RATE.fullmatch(text.strip().lower())
    rate = round(float(parts["number"]) * UNITS[parts["unit"]]) if parts else 0
    if not SLOWEST_BITS_PER_S <= rate <= FASTEST_BITS_PER_S:
        raise ValueError("give 100kbit to 100gbit, such as 1gbit or 100mbit")
    return rate


def parse_plan_rate(text: str) -> int | None:
    """The same of a plan's ``link_rate``; None for ``unshaped``."""
    if text == UNSHAPED:
        return None
    try:
        return parse_rate(text)
    except ValueError as error:
        raise ValueError(f"{error}, or {UNSHAPED}") from None
