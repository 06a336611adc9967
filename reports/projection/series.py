"""Throughput by number of ranks: what is projected. Reads it from anybody's CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measurement.errors import PlanError, closest, quoted
from measurement.files import read_text

NEEDED = ("ranks", "samples_per_s")
OPTIONAL = ("series", "ranks_per_host")
EXAMPLE = "ranks,samples_per_s,ranks_per_host\n8,2722,8\n16,5099,8"
MOST_RANKS = 10**7
LEAST_FIGURE, MOST_FIGURE = 1e-9, 1e15
LEAST_GAIN = 1.1
"""Figures that grow by less than this factor in all, while ranks grow fourfold, are taken for those of one rank."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Figures of one arm, or one program, that differ in the number of ranks only."""

    name: str
    ranks_per_host: int
    samples_per_s: Mapping[int, float]
    """All ranks together, by their number."""
    errors: Mapping[int, float] = field(default_factory=dict)
    """Standard errors of their logarithms, where known."""

    def hosts(self, ranks: int) -> float:
        """Return how many hosts this many ranks fill."""
        return ranks / self.ranks_per_host

    def time_s(self, ranks: int) -> float:
        """Return what one rank takes for a sample."""
        return ranks / self.samples_per_s[ranks]

    def up_to(self, ranks: float) -> Series:
        """Return the series without larger sizes."""
        kept = {size: figure for size, figure in sorted(self.samples_per_s.items()) if size <= ranks}
        return Series(name=self.name, ranks_per_host=self.ranks_per_host, samples_per_s=kept, errors=self.errors)


def read_series(path: Path) -> list[Series]:
    """Read a CSV file with a header: ``ranks`` and ``samples_per_s``, and if need be ``series`` and ``ranks_per_host``.

    Without ``ranks_per_host`` each rank has a host of its own. Other columns are ignored, and lines may come in any order.

    Raises:
        PlanError: the file, a column or a value is missing or makes no sense; names the line.
    """
    try:
        return _series(csv.DictReader(io.StringIO(read_text(path)), skipinitialspace=True), path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PlanError(f"'{path}' cannot be read: {error}; give a CSV file such as:\n{EXAMPLE}") from error


def _series(lines: csv.DictReader[str], path: Path) -> list[Series]:
    lines.fieldnames = [name.strip() for name in lines.fieldnames or ()]
    _require_columns(lines.fieldnames, path)
    found: dict[str, dict[int, float]] = {}
    per_host: dict[str, int] = {}
    for row in lines:
        where = f"'{path}', line {lines.line_num}"
        name = (row.get("series") or path.stem).strip()
        ranks, figure = _count(row, "ranks", where), _figure(row["samples_per_s"], where)
        hosting = _count(row, "ranks_per_host", where) if row.get("ranks_per_host") else 1
        if per_host.setdefault(name, hosting) != hosting:
            raise PlanError(
                f"{where}: ranks_per_host is {hosting}, and {per_host[name]} in other lines of series '{name}'; a series holds "
                "sizes that differ in nothing else: name this one otherwise in the column 'series'"
            )
        if ranks in found.setdefault(name, {}):
            raise PlanError(f"{where}: series '{name}' has {ranks} ranks twice; give one figure for each size, such as the mean")
        found[name][ranks] = figure
    if not found:
        raise PlanError(f"'{path}' holds no line below its header; give one for each size that was measured")
    return [_plausible(Series(name=n, ranks_per_host=per_host[n], samples_per_s=dict(sorted(f.items())))) for n, f in found.items()]


def has_hosts(path: Path) -> bool:
    """Whether the file says how many ranks share a host."""
    return "ranks_per_host" in read_text(path).partition("\n")[0]


def _require_columns(names: Sequence[str], path: Path) -> None:
    for needed in NEEDED:
        if needed not in names:
            close = closest(needed, names)
            hint = f"; rename '{close}'?" if close else ""
            raise PlanError(
                f"'{path}' has no column '{needed}'{hint} (it has {quoted(', '.join(names))}); a header names the columns, divided "
                f"by commas: {', '.join(NEEDED)}, and if need be {', '.join(OPTIONAL)}"
            )


def _count(row: Mapping[str, str | None], name: str, where: str) -> int:
    text = (row[name] or "").strip()
    count = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= count <= MOST_RANKS:
        raise PlanError(f"{where}: {name} is {quoted(text)}; give a whole number from 1 to {MOST_RANKS}")
    return count


def _figure(value: str | None, where: str) -> float:
    text = (value or "").strip()
    try:
        figure = float(text)
    except ValueError:
        figure = math.nan
    if not LEAST_FIGURE <= figure <= MOST_FIGURE:
        raise PlanError(
            f"{where}: samples_per_s is {quoted(text)}; give a number above 0, samples per second of all ranks together, without a "
            "unit or commas"
        )
    return figure


def _plausible(series: Series) -> Series:
    """Return the series.

    Raises:
        PlanError: its figures look like those of one rank each.
    """
    sizes, figures = list(series.samples_per_s), list(series.samples_per_s.values())
    if sizes[-1] >= 4 * sizes[0] and max(figures) < LEAST_GAIN * min(figures):
        raise PlanError(
            f"series '{series.name}': samples_per_s is {figures[0]:g} with {sizes[0]} ranks and {figures[-1]:g} with {sizes[-1]}, "
            "as if it were that of one rank; give that of all ranks together"
        )
    return series
