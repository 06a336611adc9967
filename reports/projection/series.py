"""Throughput by number of ranks, taken from a comparison at several points: what is projected."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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
        kept = {size: self.samples_per_s[size] for size in sorted(self.samples_per_s)}
        return replace(
            self, samples_per_s={size: rate for size, rate in kept.items() if size <= ranks}
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
    arms = [arm.name for arm in points[0].arms if arm.role != "control"]
    by_arm = [_series_of_arm(points, arm, per_host, study.confidence) for arm in arms]
    series = {arm_series.name: arm_series for arm_series in by_arm if arm_series}
    if not series:
        raise PlanError(f"'{study.comparison_id}' has no timing at any point; measure it first")
    pairs = [(name, study.baseline) for name in series if name != study.baseline]
    return list(series.values()), pairs if study.baseline in series else []


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
    batches = {point.local_batch_size for point in points}
    sizes = [point.world_size for point in points]
    if len(batches) > 1 or len(set(sizes)) < len(sizes):
        raise PlanError(
            f"points have {sorted(batches)} samples a rank, and {sizes} ranks; points that are"
            " projected differ in the number of ranks, and in nothing else"
        )


def _ranks_per_host(points: Sequence[Comparison]) -> int:
    """Ranks of each host, where there are several; all ranks where every point has one host."""
    filled = set[int]()
    for point in points:
        ranks = next((arm.by_rank.ranks for arm in point.arms if arm.by_rank), [])
        on_host = Counter(rank.host for rank in ranks)
        filled |= set(on_host.values()) if len(on_host) > 1 else set()
    if len(filled) > 1:
        raise PlanError(
            f"hosts have different numbers of ranks ({sorted(filled)}); project points with equally"
            " filled hosts"
        )
    return filled.pop() if filled else max(point.world_size for point in points)
