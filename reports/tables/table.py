"""Tables as data: built once, shown by Markdown, HTML and terminal. What an entry is, not what it says, decides how it looks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from reports.parts_schema import Convergence
from reports.schema import Status, Verdict
from reports.wording.formatting import NONE

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


Entries = Mapping[str, str | Entry]
"""What a row has, by the column's name; a text is a plain entry."""


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

    def without(self, *names: str) -> Table:
        """The table without these columns."""
        return replace(self, columns=[column for column in self.columns if column.name not in names])

    def with_total(self) -> Table:
        """The table whose last row, if there is one, sums up the others."""
        return replace(self, rows=[*self.rows[:-1], *(replace(row, is_total=True) for row in self.rows[-1:])])

    def lines(self) -> list[list[Entry]]:
        """The entries, row by row in the order of the columns."""
        return [[row.entries[column.name] for column in self.columns] for row in self.rows]

    def groups(self) -> dict[str, Table]:
        """A table for each group of rows."""
        names = dict.fromkeys(row.group for row in self.rows)
        return {name: replace(self, rows=[row for row in self.rows if row.group == name]) for name in names}


def table(
    titles: Mapping[str, str],
    rows: Iterable[Entries],
    *,
    numeric: Collection[str] = (),
    wraps: Collection[str] = (),
    optional: Collection[str] = (),
    group: str = "",
) -> Table:
    """A table of entries by column.

    Args:
        titles: of the columns, by name.
        rows: entries by name; those without a column are not shown.
        numeric: columns that hold numbers.
        wraps: columns whose entries may be broken.
        optional: columns that are left out where no row has a figure, but for the baseline's own ratio.
        group: of rows with the same text in this entry.
    """
    made = [{name: Entry(text=entry) if isinstance(entry, str) else entry for name, entry in row.items()} for row in rows]
    empty = {name for name in optional if all(row[name].text in ("1", NONE) for row in made)}
    columns = [
        Column(name=name, title=title, numeric=name in numeric, wraps=name in wraps)
        for name, title in titles.items()
        if name not in empty
    ]
    return Table(columns=columns, rows=[Row(entries=row, group=row[group].text if group else "") for row in made])
