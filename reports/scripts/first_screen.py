"""What a report of scripts says first, below the verdict: whether they train alike, and what they do differently."""

from __future__ import annotations

from reports.schema import Comparison


def first_lines(comparison: Comparison) -> list[str]:
    """One line each: equality, loss, the first culprits, and how many more differences there are. None without scripts."""
    raise NotImplementedError
