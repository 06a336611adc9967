"""Compares the hosts of a plan in what must, or should, be equal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from measurement.conditions.conditions import CONDITIONS

CLOCK_FIELD = "clock_offset_s"
CLOCK_TOLERANCE_S = 0.1
"""Clocks matter because of two failures the earlier one, by the hosts' own clocks, is taken for the cause."""


def host_differences(facts: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Compare hosts with the first one: returns differences that make ranks unequal, and others that are worth knowing. Pure.

    ``facts``: by host, ``conditions.fingerprint`` and, under ``CLOCK_FIELD``, how far its clock is ahead of the driver's.
    """
    first, *others = facts
    unlike = [line for other in others for line in _unlike(facts, first, other, "refuse")]
    worth_knowing = [line for other in others for line in _unlike(facts, first, other, "report")]
    clocks = [
        f"the clock of host '{host}' is {found[CLOCK_FIELD]:+.3f} s off the driver's (of two failures the wrong one may seem first)"
        for host, found in facts.items()
        if abs(found.get(CLOCK_FIELD, 0.0)) - found.get("clock_error_s", 0.0) > CLOCK_TOLERANCE_S
    ]
    return unlike, worth_knowing + clocks


def _unlike(facts: Mapping[str, Mapping[str, Any]], first: str, other: str, rule: str) -> list[str]:
    names = [condition.field for condition in CONDITIONS if condition.hosts == rule]
    mine, theirs = facts[first], facts[other]
    return [
        f"host '{other}' has {name} {theirs.get(name) or 'missing'}, host '{first}' has {mine.get(name) or 'missing'}"
        for name in names
        if theirs.get(name) != mine.get(name)
    ]
