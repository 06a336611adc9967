"""What a report of scripts says first, below the verdict: whether they train alike, and what they do differently."""

from __future__ import annotations

from reports.schema import Comparison
from reports.script_schema import ConfigurationDifference

MOST_CULPRITS = 3
"""Differences that the first screen names."""


def first_lines(comparison: Comparison) -> list[str]:
    """One line each: equality, ranks, loss, the first culprits, and how many more there are. None without scripts."""
    equality = comparison.equality
    if equality is None:
        return []
    culprits = culprit_lines(comparison)
    ranks = [said for said in equality.ranks.values() if not any(said in line for line in culprits)]
    candidates = [arm.name for arm in comparison.arms if arm.role == "candidate"]
    losses = [loss.sentence for arm, loss in equality.loss.items() if loss.sentence and arm in candidates]
    return [equality.sentence, *ranks, *losses, *culprits]


def culprit_lines(comparison: Comparison) -> list[str]:
    """The most important differences, and how many there are besides."""
    found = comparison.configuration_differences
    if not found:
        return ["No setting differs that the probe sees"]
    lines = [f"{_kind(one)}: {one.sentence}" for one in found if one.severity != "note"][:MOST_CULPRITS]
    more = len(found) - len(lines)
    if not lines:
        return [f"{more} settings differ that come with the library: see the table"]
    return [*lines, f"and {more} more {'difference' if more == 1 else 'differences'}: see the table"] if more else lines


def _kind(one: ConfigurationDifference) -> str:
    """How much it matters, in a word or two."""
    work = "other work" if one.changes_work else ""
    if one.severity == "mistake":
        return f"Check, {work}" if work else "Check"
    return work.capitalize() or "Differs"
