"""Throughput at sizes that were not measured: series by number of ranks, taken from a comparison at
several points, and what is predicted from them, as tables and lines.

It refuses where the measured sizes are too few or contradict the model
(``reports.statistics.growth_model``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from scipy import special

from measurement.errors import PlanError
from reports.conclusions.scaling import quotient
from reports.parts_schema import Estimate, Stored
from reports.schema import Comparison
from reports.statistics.growth_model import Growth, fit_growth
from reports.tables import Column, Table, number, table, wrapped
from reports.wording.formatting import bounds_text, listed, rate, rate_interval, ratio

SCHEMA_VERSION = 1
"""Version of projection.json. It grows when a key changes its meaning or goes."""
CONFIDENCE = 0.9


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

    @property
    def usable(self) -> list[int]:
        """One whole host and sizes of several; parts of a host are another regime."""
        return [ranks for ranks in self.samples_per_s if ranks >= self.ranks_per_host]

    def up_to(self, ranks: float) -> Series:
        """Return the series without larger sizes, in order."""
        kept = {size: rate for size, rate in sorted(self.samples_per_s.items()) if size <= ranks}
        return replace(self, samples_per_s=kept)


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
    batches = {point.local_batch_size for point in points}
    sizes = [point.world_size for point in points]
    if len(batches) > 1 or len({*sizes}) < len(sizes):
        raise PlanError(
            f"points have {sorted(batches)} samples a rank, and {sizes} ranks; points that are"
            " projected differ in the number of ranks, and in nothing else"
        )
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


class Prediction(Stored):
    """One size that was not measured, or that was left out on purpose."""

    ranks: int
    hosts: int
    samples_per_s: Estimate
    """Bounds are a prediction interval: where one launch is expected."""
    efficiency: Estimate
    """Throughput of a rank over that with ``efficiency_of`` ranks."""
    measured: float | None = None
    """What was measured there, if it was."""


class BackCheck(Stored):
    """The largest size used, predicted from the smaller ones."""

    ranks: int
    from_ranks: list[int]
    samples_per_s: Estimate
    measured: float
    holds: bool
    """Whether the interval holds what was measured."""


class SeriesProjection(Stored):
    """One series: predictions, or why there are none."""

    series: str
    ranks_per_host: int
    used: list[int]
    """Sizes that it rests on: one whole host, and those of several."""
    efficiency_of: int
    check: BackCheck | None = None
    """Null where the smaller sizes alone are too few."""
    predictions: list[Prediction] = []
    refusal: str | None = None
    """Why there is no prediction, and what to measure."""


class RatioPrediction(Stored):
    """Throughput of one arm over that of another, at a size that was not measured."""

    candidate: str
    baseline: str
    ranks: int
    ratio: Estimate


class Projection(Stored):
    """All that was projected at once."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["projection"] = "projection"
    source: str
    confidence: float = CONFIDENCE
    to: list[int]
    series: list[SeriesProjection]
    ratios: list[RatioPrediction] = []


LOW, HIGH = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2


def project(
    series: Sequence[Series],
    to: Sequence[int],
    *,
    source: str,
    fit_up_to: float = math.inf,
    pairs: Sequence[tuple[str, str]] = (),
) -> Projection:
    """Project every series that allows it.

    Sizes beyond ``fit_up_to`` are left out, and shown beside what is predicted for them. ``pairs``:
    of series whose ratio is projected.
    """
    projections = [_project_one(whole, to, fit_up_to) for whole in series]
    predicted = {
        projected.series: {at.ranks: at.samples_per_s for at in projected.predictions}
        for projected in projections
    }
    ratios = [
        RatioPrediction(
            candidate=a, baseline=b, ranks=ranks, ratio=quotient(ours, predicted[b][ranks])
        )
        for a, b in pairs
        for ranks, ours in predicted[a].items()
        if ranks in predicted[b]
    ]
    return Projection(source=source, to=list(to), series=projections, ratios=ratios)


def _project_one(whole: Series, to: Sequence[int], fit_up_to: float) -> SeriesProjection:
    series = whole.up_to(fit_up_to)
    smallest, largest = min(series.samples_per_s, default=1), max(series.samples_per_s, default=0)
    beyond = [ranks for ranks in to if ranks > largest and ranks % whole.ranks_per_host == 0]
    refusal, check, predictions = _too_little(series), None, []
    if refusal is None and not beyond:
        refusal = (
            f"no size asked for ({_listed(to)} ranks) is above its largest, {largest}, and fills"
            f" hosts of {whole.ranks_per_host}; ask for more, or leave larger sizes out with"
            " --fit-up-to"
        )
    if refusal is None:
        check = _check(series)
    if check and not check.holds:
        predicted = check.samples_per_s
        refusal = (
            f"predicted from {_listed(check.from_ranks)} ranks: {rate(predicted)} samples/s at"
            f" {check.ranks} ({rate_interval(predicted)}), and {rate(check.measured)} were"
            " measured: what limits it there is not seen in the smaller sizes, or a figure is"
            f" wrong; measure {check.ranks} ranks again, and {2 * check.ranks}"
        )
    if refusal is None:
        growth = _fit(series)
        for ranks in beyond:
            throughput = _throughput(growth, ranks, series)
            predictions.append(
                Prediction(
                    ranks=ranks,
                    hosts=ranks // series.ranks_per_host,
                    samples_per_s=throughput,
                    efficiency=throughput.times(series.time_s(smallest) / ranks),
                    measured=whole.samples_per_s.get(ranks),
                )
            )
    return SeriesProjection(
        series=whole.name,
        ranks_per_host=whole.ranks_per_host,
        used=series.usable,
        efficiency_of=smallest,
        check=check,
        predictions=predictions,
        refusal=refusal,
    )


def _too_little(series: Series) -> str | None:
    """Why these sizes are too few, and what to measure; None where they are enough."""
    per_host, sizes = series.ranks_per_host, list(series.samples_per_s)
    if not sizes:
        return "no size is left to fit; give a larger --fit-up-to"
    several = [ranks for ranks in sizes if ranks > per_host]
    if partly := [ranks for ranks in several if ranks % per_host]:
        return f"{_listed(partly)} ranks do not fill hosts of {per_host}; leave that size out"
    if len(several) > 1 or (several and per_host > 1 and per_host in sizes):
        return None
    return (
        f"its sizes ({_listed(sizes)} ranks) show too little of exchange between hosts of"
        f" {per_host}; measure {2 * per_host} and {4 * per_host} ranks"
    )


def _check(series: Series) -> BackCheck | None:
    """Predict the largest size from the smaller ones, where these are enough."""
    *smaller, largest = series.usable
    before = series.up_to(largest - 1)
    if _too_little(before):
        return None
    error = series.errors.get(largest, 0.0)
    predicted = _throughput(_fit(before), largest, series, error=error)
    measured = series.samples_per_s[largest]
    return BackCheck(
        ranks=largest,
        from_ranks=smaller,
        samples_per_s=predicted,
        measured=measured,
        holds=not predicted.excludes(measured),
    )


def _fit(series: Series) -> Growth:
    used = series.usable
    times_s = [series.time_s(ranks) for ranks in used]
    errors = [series.errors.get(ranks, 0.0) for ranks in used]
    return fit_growth([series.hosts(ranks) for ranks in used], times_s, errors)


def _throughput(growth: Growth, ranks: int, series: Series, *, error: float = 0.0) -> Estimate:
    """All ranks together, with its prediction interval; ``error``: of a figure to compare with,
    which widens it.
    """
    hosts = series.hosts(ranks)
    centre = growth.mean(hosts)
    down, up = (growth.quantile(hosts, share) - centre for share in (LOW, HIGH))
    more = 1.645 * error
    bounds = [
        ranks / math.exp(centre + side * math.hypot(abs(part), more))
        for side, part in ((1, up), (-1, down))
    ]
    return Estimate(value=ranks / math.exp(centre), ci_low=bounds[0], ci_high=bounds[1])


def _listed(sizes: Sequence[int]) -> str:
    return listed(list(map(str, sizes)))


PROJECTION = (
    wrapped("series", "series.series"),
    number("ranks", "at.ranks"),
    number("hosts", "at.hosts"),
    number("samples/s", "at.samples_per_s", rate),
    number("90% interval", "at.samples_per_s", rate_interval),
    number("efficiency", "at.efficiency.value", "{:.0%}".format),
    number("measured", lambda row: row["at"].measured or None, rate, optional=True),
)
RATIOS = (
    Column("ratio", lambda prediction: f"{prediction.candidate} / {prediction.baseline}"),
    number("ranks", "ranks"),
    number("throughput", "ratio.value", ratio),
    number(
        "90% interval", "ratio", lambda estimate: bounds_text(estimate.ci_low, estimate.ci_high)
    ),
)


def projection_table(projection: Projection) -> Table:
    """Every prediction, in groups by series."""
    rows = [
        {"series": projected, "at": prediction}
        for projected in projection.series
        for prediction in projected.predictions
    ]
    return table(PROJECTION, rows, group="series.series")


def ratio_table(projection: Projection) -> Table:
    """Every ratio of two arms; no rows where nothing is compared."""
    return table(RATIOS, projection.ratios, group=RATIOS[0].read)


def notes(projection: Projection) -> list[str]:
    """What each series rests on and how its largest size was predicted, then what the columns
    mean.
    """
    lines = []
    for projected in projection.series:
        check = "one size of several hosts, so nothing to check it by"
        if projected.check:
            predicted = projected.check.samples_per_s
            check = (
                f"check: predicted from {_listed(projected.check.from_ranks)} ranks:"
                f" {rate(predicted)} at {projected.check.ranks} ({rate_interval(predicted)}),"
                f" measured {rate(projected.check.measured)}"
            )
        if projected.predictions:
            lines.append(f"{projected.series}: from {_listed(projected.used)} ranks; {check}")
    columns = (
        "interval: where one launch is expected; efficiency: a rank's throughput over that at the"
        " smallest size"
    )
    return [*lines, columns] if lines else []


def refusals(projection: Projection) -> list[str]:
    """Why series are not projected."""
    return [
        f"series '{projected.series}' is not projected: {projected.refusal}"
        for projected in projection.series
        if projected.refusal
    ]
