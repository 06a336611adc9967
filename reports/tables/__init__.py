"""Tables as data: columns that read what rows are of. Markdown, HTML and terminal show them.

What an entry is, not what it says, decides how it looks. ``figures`` are what columns read,
``arm_tables`` and ``sections`` the tables of a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal

from reports.parts_schema import Convergence
from reports.schema import Status, Verdict
from reports.tables.figures import Figure, Path, figure_at
from reports.wording.formatting import NONE, with_interval

Kind = (
    Status
    | Verdict
    | Convergence
    | Literal["plain", "baseline", "control", "control failed", "no timing", "reference"]
)


NO_FIGURES = {"", "1", NONE}
"""Texts of an optional column that is left out."""


@dataclass(frozen=True)
class Entry:
    """One cell of a table."""

    text: str
    _: KW_ONLY
    kind: Kind = "plain"
    short: str | None = None
    """Instead of ``text`` where space is short; None: ``text`` is short."""
    note: str = ""
    """Shown in small letters below it, on the page."""

    @property
    def narrow(self) -> str:
        """The shorter text."""
        return self.text if self.short is None else self.short


@dataclass(frozen=True)
class Column:
    """One column, and how its entries are read from what the rows are of."""

    title: str
    read: Path
    words: Callable[[Any], str | Entry] = str
    """How it is written; what is not there is ``NONE``."""
    _: KW_ONLY
    numeric: bool = False
    wraps: bool = False
    """Its entries may be broken over several lines."""
    is_short: bool = False
    """The page shows its entries in their shorter words."""
    optional: bool = False
    """Left out where no row has a figure, but for the baseline's own ratio."""

    def entry(self, shown: Any) -> Entry:
        """Its cell in a row."""
        value = figure_at(shown, self.read)
        made = NONE if value is None else value if isinstance(value, Entry) else self.words(value)
        return made if isinstance(made, Entry) else Entry(made)


number = partial(Column, numeric=True)
"""A column of numbers."""
wrapped = partial(Column, wraps=True)
"""A column whose entries may be broken over several lines."""


def figure_column(figure: Figure, names: Mapping[str, str] | None = None, **more: Any) -> Column:
    """The column of a figure that may have an interval.

    ``names``: in its title; ``more``: of the column.
    """

    def words(value: Any) -> Entry:
        if not figure.bounded:
            return Entry(figure.words(value))
        return Entry(with_interval(value, figure.words), short=figure.words(value.value))

    return number(
        figure.title.format(**names or {}), **{"read": figure.read, "words": words} | more
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row."""

    entries: Sequence[Entry]
    """Column by column."""
    group: str = ""
    """Rows of one group belong together and follow each other."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns from left to right, rows from top to bottom."""

    columns: Sequence[Column]
    rows: Sequence[Row]

    def groups(self) -> dict[str, Table]:
        """A table for each group of rows."""
        names = dict.fromkeys(row.group for row in self.rows)
        return {
            name: replace(self, rows=[row for row in self.rows if row.group == name])
            for name in names
        }


def table(columns: Sequence[Column], shown: Iterable[Any], *, group: Path = "") -> Table:
    """A table with a row for each of ``shown``; rows for which ``group`` reads the same come
    together.
    """
    by_group: dict[str, list[Any]] = {}
    for row in shown:
        by_group.setdefault(Column("", group).entry(row).text if group else "", []).append(row)
    rows = [row for group_rows in by_group.values() for row in group_rows]
    kept = [
        column
        for column in columns
        if not (column.optional and {column.entry(row).text for row in rows} <= NO_FIGURES)
    ]
    made = [
        Row(entries=[column.entry(row) for column in kept], group=name)
        for name, group_rows in by_group.items()
        for row in group_rows
    ]
    return Table(columns=kept, rows=made)
