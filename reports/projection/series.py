"""Throughput by number of ranks: what is projected. It comes from a study, or from a CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scipy import special

from measurement.errors import PlanError, closest, quoted
from measurement.files import read_text
from reports.estimate import Estimate
from reports.schema import Study, StudyPoint

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


def series_of(study: Study) -> tuple[list[Series], list[tuple[str, str]]]:
    """Make the series of a study's arms, and tell which are compared, candidate and baseline; an arm without timing has none.

    Raises:
        PlanError: its points differ in more than the number of ranks.
    """
    if study.scaling == "strong":
        raise PlanError(
            f"'{study.comparison_id}' is a study of strong scaling: the batch of a rank shrinks from point to point; project one "
            "with scaling: weak"
        )
    points = study.points
    _require_alike(points)
    per_host = _ranks_per_host(points)
    names = [arm.name for arm in points[0].arms if arm.role != "control"]
    found = [one for name in names if (one := _series_of_arm(points, name, per_host, study.confidence))]
    timed = [one.name for one in found]
    pairs = [(name, study.baseline) for name in timed if name != study.baseline and study.baseline in timed]
    if not found:
        raise PlanError(f"'{study.comparison_id}' has no timing at any point; measure it first")
    return found, pairs


def _series_of_arm(points: Sequence[StudyPoint], arm: str, per_host: int, confidence: float) -> Series | None:
    """None of an arm without timing, and of one that runs as a single process."""
    arms = {point.world_size: point.arm(arm) for point in points}
    figures = {ranks: own.throughput_per_s for ranks, own in arms.items() if own.status == "ok" and own.throughput_per_s}
    if not figures or (max(figures) == 1 and max(point.world_size for point in points) > 1):
        return None
    return Series(
        name=arm,
        ranks_per_host=per_host,
        samples_per_s={ranks: figures[ranks].value for ranks in sorted(figures)},
        errors={ranks: _error(figure, confidence) for ranks, figure in figures.items()},
    )


def _error(figure: Estimate, confidence: float) -> float:
    """The standard error of its logarithm, from its interval."""
    if figure.bounds is None or figure.bounds[0] <= 0:
        return 0.0
    return math.log(figure.bounds[1] / figure.bounds[0]) / (2 * float(special.ndtri((1 + confidence) / 2)))


def _require_alike(points: Sequence[StudyPoint]) -> None:
    first = points[0]
    for point in points[1:]:
        if point.local_batch_size != first.local_batch_size:
            raise PlanError(
                f"points '{first.name}' and '{point.name}' have {first.local_batch_size} and {point.local_batch_size} samples a "
                "rank; points that are projected differ in the number of ranks only"
            )
    sizes = [point.world_size for point in points]
    twice = next((point for index, point in enumerate(points) if point.world_size in sizes[:index]), None)
    if twice:
        raise PlanError(
            f"point '{twice.name}' has {twice.world_size} ranks, as another point has; project one that has each size once"
        )


def _ranks_per_host(points: Sequence[StudyPoint]) -> int:
    """Ranks of each host, where there are several; all ranks where every point has one host."""
    found: dict[int, str] = {}
    for point in points:
        used = _used_slots(point)
        if len(used) > 1:
            found |= {slots: point.name for slots in used if slots not in found}
    if len(found) > 1:
        told = ", ".join(f"{slots} at '{name}'" for slots, name in found.items())
        raise PlanError(f"hosts have unlike numbers of ranks ({told}); project points that fill their hosts alike")
    return next(iter(found), max(point.world_size for point in points))


def _used_slots(point: StudyPoint) -> list[int]:
    """How many ranks each host has: as measured where no hosts were asked for, else filled in the order of the list."""
    seen = next((arm.by_rank.hosts for arm in point.arms if arm.by_rank), [])
    if point.hosts is None and seen:
        return [host.ranks for host in seen]
    used, left = [], point.world_size
    for host in (point.hosts or f"here:{left}").split(","):
        slots = min(int(host.rpartition(":")[2]) if ":" in host else 1, left)
        used += [slots] if slots else []
        left -= slots
    return used
