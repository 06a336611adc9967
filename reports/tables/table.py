"""Tables as data: built once, shown by Markdown, HTML and terminal. What an entry is, not what it says, decides how it looks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from reports.parts_schema import Convergence
from reports.schema import Status, Verdict

Kind = Status | Verdict | Convergence | Literal["plain", "baseline", "control", "control failed", "no timing", "reference"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What stands in one place of a table."""

    text: str
    kind: Kind = "plain"
    short: str | None = None
    """Instead of ``text`` where space is short; None: ``text`` is short."""

    @property
    def narrow(self) -> str:
        """The shorter text."""
        return self.text if self.short is None else self.short


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column."""

    name: str
    """The key of its entries."""
    title: str
    numeric: bool = False
    wraps: bool = False
    """Its entries may be broken over several lines."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row."""

    entries: Mapping[str, Entry]
    """By the column's name."""
    group: str = ""
    """Rows of one group belong together and follow each other."""
    is_total: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns from left to right, rows from top to bottom."""

    columns: Sequence[Column]
    rows: Sequence[Row]

    def only(self, *names: str) -> Table:
        """The table with these columns, in this order."""
        by_name = {column.name: column for column in self.columns}
        return replace(self, columns=[by_name[name] for name in names])

    def without(self, *names: str) -> Table:
        """The table without these columns."""
        return replace(self, columns=[column for column in self.columns if column.name not in names])

    def narrowed(self, *names: str) -> Table:
        """The table with the shorter texts in these columns."""

        def narrow(row: Row) -> Row:
            short = {name: replace(row.entries[name], text=row.entries[name].narrow, short=None) for name in names}
            return replace(row, entries={**row.entries, **short})

        return replace(self, rows=[narrow(row) for row in self.rows])

    def lines(self) -> list[list[Entry]]:
        """The entries, row by row in the order of the columns."""
        return [[row.entries[column.name] for column in self.columns] for row in self.rows]

    def groups(self) -> dict[str, Table]:
        """A table for each group of rows."""
        names = dict.fromkeys(row.group for row in self.rows)
        return {name: replace(self, rows=[row for row in self.rows if row.group == name]) for name in names}


def columns(titles: Mapping[str, str], *, numeric: Collection[str] = (), wraps: Collection[str] = ()) -> list[Column]:
    """Columns by name and title; those that hold numbers, and those that may be broken, are named."""
    return [Column(name=name, title=title, numeric=name in numeric, wraps=name in wraps) for name, title in titles.items()]


def row(entries: Mapping[str, str | Entry], *, group: str = "", is_total: bool = False) -> Row:
    """A row of entries by column; a text is a plain entry."""
    made = {name: Entry(text=entry) if isinstance(entry, str) else entry for name, entry in entries.items()}
    return Row(entries=made, group=group, is_total=is_total)
