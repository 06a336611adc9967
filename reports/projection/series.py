"""Throughput by number of ranks, taken from a comparison at several points: what is projected."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scipy import special

from measurement.errors import PlanError
from reports.estimate import Estimate
from reports.schema import Comparison


@dataclass(frozen=True, kw_only=True)
class Series:
    """Figures of one arm that differ in the number of ranks only."""

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
        kept = {
            size: figure for size, figure in sorted(self.samples_per_s.items()) if size <= ranks
        }
        return Series(
            name=self.name,
            ranks_per_host=self.ranks_per_host,
            samples_per_s=kept,
            errors=self.errors,
        )


def series_of(study: Comparison) -> tuple[list[Series], list[tuple[str, str]]]:
    """Make the series of the arms over points, and the compared pairs, candidate and baseline.

    Arms without timing have none.

    Raises:
        PlanError: it has no points, or these differ in more than the number of ranks.
    """
    if study.scaling == "strong":
        raise PlanError(
            f"'{study.comparison_id}' is a study of strong scaling: the batch of a rank shrinks"
            " from point to point; project one with scaling: weak"
        )
    points = study.points
    if not points:
        raise PlanError(
            f"'{study.comparison_id}' has one size; project a comparison at several points, or runs"
            " of several sizes"
        )
    _require_alike(points)
    per_host = _ranks_per_host(points)
    names = [arm.name for arm in points[0].arms if arm.role != "control"]
    series = [
        arm_series
        for name in names
        if (arm_series := _series_of_arm(points, name, per_host, study.confidence))
    ]
    timed = [arm_series.name for arm_series in series]
    pairs = [
        (name, study.baseline)
        for name in timed
        if name != study.baseline and study.baseline in timed
    ]
    if not series:
        raise PlanError(f"'{study.comparison_id}' has no timing at any point; measure it first")
    return series, pairs


def _series_of_arm(
    points: Sequence[Comparison], arm: str, per_host: int, confidence: float
) -> Series | None:
    """None of an arm without timing, and of one that runs as a single process."""
    arms = {point.world_size: point.arm(arm) for point in points}
    figures = {
        ranks: summary.throughput_per_s
        for ranks, summary in arms.items()
        if summary.status == "ok" and summary.throughput_per_s
    }
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
    return math.log(figure.bounds[1] / figure.bounds[0]) / (
        2 * float(special.ndtri((1 + confidence) / 2))
    )


def _require_alike(points: Sequence[Comparison]) -> None:
    first = points[0]
    for point in points[1:]:
        if point.local_batch_size != first.local_batch_size:
            raise PlanError(
                f"points '{first.name}' and '{point.name}' have {first.local_batch_size} and"
                f" {point.local_batch_size} samples a rank; points that are projected differ in the"
                " number of ranks only"
            )
    sizes = [point.world_size for point in points]
    twice = next(
        (point for index, point in enumerate(points) if point.world_size in sizes[:index]), None
    )
    if twice:
        raise PlanError(
            f"point '{twice.name}' has {twice.world_size} ranks, as another point has; project one"
            " that has each size once"
        )


def _ranks_per_host(points: Sequence[Comparison]) -> int:
    """Ranks of each host, where there are several; all ranks where every point has one host."""
    places: dict[int, str] = {}
    for point in points:
        used = _used_slots(point)
        if len(used) > 1:
            places |= {slots: point.name for slots in used if slots not in places}
    if len(places) > 1:
        listed_places = ", ".join(f"{slots} at '{name}'" for slots, name in places.items())
        raise PlanError(
            f"hosts have different numbers of ranks ({listed_places}); project points with equally"
            " filled hosts"
        )
    return next(iter(places), max(point.world_size for point in points))


def _used_slots(point: Comparison) -> list[int]:
    """How many ranks each host has: as measured where no hosts were asked for, else filled in the
    order of the list.
    """
    seen = next((arm.by_rank.hosts for arm in point.arms if arm.by_rank), [])
    if point.asked_hosts is None and seen:
        return [host.ranks for host in seen]
    used, left = [], point.world_size
    for host in (point.asked_hosts or f"here:{left}").split(","):
        slots = min(int(host.rpartition(":")[2]) if ":" in host else 1, left)
        used += [slots] if slots else []
        left -= slots
    return used
