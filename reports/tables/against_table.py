"""The table of what changed since an earlier result."""

from __future__ import annotations

from collections.abc import Mapping

from reports.against_schema import Against, Change, ChangeVerdict
from reports.schema import Comparison
from reports.tables.table import Entry, Kind, Row, Table, columns, row
from reports.wording.against_sentences import WITHHELD, figure_name
from reports.wording.formatting import NONE, percent, rate, ratio

KINDS: Mapping[ChangeVerdict, Kind] = {"regressed": "slower", "improved": "faster", "no regression": "equivalent"}
TITLES = {"figure": "figure", "before": "then", "after": "now", "change": "change", "interval": "interval", "verdict": "verdict"}


def against_table(comparison: Comparison) -> Table:
    """A row for each throughput, then for each ratio; none without an earlier result."""
    found = comparison.against
    rows = [_row(change, found, comparison.sample_unit) for change in found.changes] if found else []
    titles = TITLES | ({"interval": f"{percent(found.confidence)} interval"} if found else {})
    return Table(columns=columns(titles, numeric=("before", "after", "change", "interval"), wraps=("verdict",)), rows=rows)


def _row(change: Change, found: Against, unit: str) -> Row:
    is_ratio = change.baseline is not None
    before, after = (ratio(value) if is_ratio else rate(value) for value in (change.before, change.after))
    bounds = change.change.bounds
    verdict = Entry(text=_verdict(change, found), kind=KINDS.get(change.verdict, "undecided"))
    return row(
        {"figure": figure_name(change) + ("" if is_ratio else f", {unit}/s"), "before": before, "after": after}
        | {"change": _signed(change.change.value), "interval": " to ".join(map(_signed, bounds)) if bounds else NONE}
        | {"verdict": verdict}
    )


def _signed(value: float) -> str:
    return f"{value - 1:+.1%}"


def _verdict(change: Change, found: Against) -> str:
    if change.withheld_by is not None:
        return f"undecided: {WITHHELD[change.withheld_by]}"
    beyond = f" beyond {percent(found.allow_slower)}" if change.is_beyond or change.verdict == "no regression" else ""
    return f"{change.verdict}{beyond}"
