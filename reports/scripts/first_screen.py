"""What a report of scripts says first, below the verdict: whether they train alike, and what they do differently."""

from __future__ import annotations

from reports.schema import Comparison

MOST_CULPRITS = 3
"""Differences that the first screen names."""


def first_lines(comparison: Comparison) -> list[str]:
    """One line each: equality, loss, the first culprits, and how many more differences there are. None without scripts."""
    if comparison.equality is None:
        return []
    losses = [f"{one.sentence}" for arm, one in comparison.equality.loss.items() if one.sentence and _is_candidate(comparison, arm)]
    return [comparison.equality.sentence, *losses, *culprit_lines(comparison)]


def culprit_lines(comparison: Comparison) -> list[str]:
    """The most important differences, and how many there are besides."""
    worth = [one for one in comparison.configuration_differences if one.severity != "note"]
    lines = [f"Differs{' in work' if one.changes_work else ''}: {one.sentence}" for one in worth[:MOST_CULPRITS]]
    more = len(comparison.configuration_differences) - len(lines)
    if not comparison.configuration_differences:
        return ["No setting differs that the probe sees"]
    return (
        [
            *lines,
            f"{f'and {more} more differences' if lines else f'{more} settings differ that come with the library'}: see the table",
        ]
        if more
        else lines
    )


def _is_candidate(comparison: Comparison, arm: str) -> bool:
    return comparison.arm(arm).role == "candidate"
