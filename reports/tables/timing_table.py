"""The table of where the seconds of launches went."""

from __future__ import annotations

from reports.schema import Comparison
from reports.tables.table import Row, Table, columns, row

TIMINGS = (
    "Mean of launches that ran all arms at once, in wall time of all arms together. The start is split as the arm tells that was "
    "ready last, by its slowest rank: launcher is what the rank's own stages leave, imports hold torch's, rendezvous the wait for "
    "other ranks, and model what the first optimizer imports (torch._dynamo)"
)


def timing_table(comparison: Comparison) -> Table:
    """A row for each part of a launch, and one for all of it."""
    whole = sum(one.seconds for one in comparison.timings)
    rows = [_row(one.stage, one.part, one.seconds, whole) for one in comparison.timings]
    titles = {"stage": "stage", "part": "part", "seconds": "seconds", "share": "share"}
    rows += [_row("launch", "in all", whole, whole, is_total=True)] if rows else []
    return Table(columns=columns(titles, numeric=("seconds", "share")), rows=rows)


def _row(stage: str, part: str, seconds: float, whole: float, *, is_total: bool = False) -> Row:
    shown = {"seconds": f"{seconds:.1f}", "share": f"{seconds / whole if whole else 0.0:.0%}"}
    return row({"stage": stage, "part": part, **shown}, group=stage, is_total=is_total)
