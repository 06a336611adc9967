"""Projects series to sizes that were not measured, as tables and lines.

It refuses where the measured sizes are too few or contradict the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from reports.estimate import Estimate, Stored
from reports.projection.growth_model import Growth, fit_growth
from reports.projection.series import Series
from reports.tables.table import Column, Table, number, table
from reports.wording.formatting import bounds_text, listed, rate, rate_interval, ratio

SCHEMA_VERSION = 1
"""Version of projection.json. It grows when a key changes its meaning or goes."""
CONFIDENCE = 0.9


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
DRAWS = 20_000
"""Pairs of figures that the interval of a ratio is made of."""
SEED = 1


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
    projections = [_project_one(source_series, to, fit_up_to) for source_series in series]
    grown = {projected.series: growth for projected, growth in projections if growth}
    by_name = {source_series.name: source_series for source_series in series}
    ratios = [
        RatioPrediction(
            candidate=a,
            baseline=b,
            ranks=ranks,
            ratio=_ratio(grown[a], grown[b], by_name[a].hosts(ranks)),
        )
        for a, b in pairs
        if a in grown and b in grown
        for ranks in _beyond(by_name[a].up_to(fit_up_to), to)
        if ranks in _beyond(by_name[b].up_to(fit_up_to), to)
    ]
    return Projection(
        source=source,
        to=list(to),
        series=[projected for projected, _ in projections],
        ratios=ratios,
    )


def _project_one(
    whole: Series, to: Sequence[int], fit_up_to: float
) -> tuple[SeriesProjection, Growth | None]:
    series = whole.up_to(fit_up_to)
    used = _usable(series)
    smallest = min(series.samples_per_s, default=1)
    projected = SeriesProjection(
        series=whole.name, ranks_per_host=whole.ranks_per_host, used=used, efficiency_of=smallest
    )
    refusal = _too_little(series) or _unreachable(series, to)
    if refusal:
        return projected.model_copy(update={"refusal": refusal}), None
    check = _check(series)
    if check and not check.holds:
        predicted = check.samples_per_s
        refusal = (
            f"predicted from {_listed(check.from_ranks)} ranks: {predicted.value:.4g} samples/s at"
            f" {check.ranks} ({predicted.ci_low:.4g} to {predicted.ci_high:.4g}), and"
            f" {check.measured:.4g} were measured: what limits it there is not seen in the smaller"
            f" sizes, or a figure is wrong; measure {check.ranks} ranks again, and"
            f" {2 * check.ranks}"
        )
        return projected.model_copy(update={"check": check, "refusal": refusal}), None
    growth = _fit(series, used)
    predictions = []
    for ranks in _beyond(series, to):
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
    return projected.model_copy(update={"check": check, "predictions": predictions}), growth


def _usable(series: Series) -> list[int]:
    """One whole host and sizes of several; parts of a host are another regime."""
    return [ranks for ranks in series.samples_per_s if ranks >= series.ranks_per_host]


def _too_little(series: Series) -> str | None:
    """Why these sizes are too few, and what to measure; None where they are enough."""
    per_host, sizes = series.ranks_per_host, list(series.samples_per_s)
    several = [ranks for ranks in sizes if ranks > per_host]
    if not sizes:
        return "no size is left to fit; give a larger --fit-up-to"
    partly = [ranks for ranks in several if ranks % per_host]
    if partly:
        return f"{partly[0]} ranks do not fill hosts of {per_host}; leave that size out"
    if not several:
        return (
            f"all its sizes ({_listed(sizes)} ranks) are within one host of {per_host}: none shows"
            f" exchange between hosts; measure {2 * per_host} and {4 * per_host} ranks"
        )
    if len(several) > 1 or (per_host > 1 and per_host in sizes):
        return None
    whole_host = f", or {per_host}, which is one whole host" if per_host > 1 else ""
    return (
        f"its only size of several hosts is {several[0]} ranks; measure {2 * several[0]} ranks,"
        f" too{whole_host}"
    )


def _unreachable(series: Series, to: Sequence[int]) -> str | None:
    """Why none of the sizes that are asked for can be projected to; None where one can."""
    largest = max(series.samples_per_s)
    if _beyond(series, to):
        return None
    partly = next((ranks for ranks in to if ranks > largest), None)
    if partly:
        return f"{partly} ranks do not fill hosts of {series.ranks_per_host}; ask for a multiple"
    return (
        f"{max(to)} ranks are not more than its largest size, {largest}; ask for more, or leave"
        " larger ones out with --fit-up-to"
    )


def _beyond(series: Series, to: Sequence[int]) -> list[int]:
    """The sizes that are larger than all measured ones, and fill their hosts."""
    return [
        ranks
        for ranks in to
        if ranks > max(series.samples_per_s) and ranks % series.ranks_per_host == 0
    ]


def _check(series: Series) -> BackCheck | None:
    """Predict the largest size from the smaller ones, where these are enough."""
    *smaller, largest = _usable(series)
    before = series.up_to(largest - 1)
    if _too_little(before):
        return None
    predicted = _throughput(
        _fit(before, smaller), largest, series, error=series.errors.get(largest, 0.0)
    )
    measured = series.samples_per_s[largest]
    holds = predicted.bounds is not None and predicted.bounds[0] <= measured <= predicted.bounds[1]
    return BackCheck(
        ranks=largest, from_ranks=smaller, samples_per_s=predicted, measured=measured, holds=holds
    )


def _fit(series: Series, used: Sequence[int]) -> Growth:
    times_s, errors = (
        [series.time_s(ranks) for ranks in used],
        [series.errors.get(ranks, 0.0) for ranks in used],
    )
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


def _ratio(candidate: Growth, baseline: Growth, hosts: float) -> Estimate:
    """The candidate's throughput over the baseline's: their predictions are drawn independently of
    each other.
    """
    random = np.random.default_rng(SEED)
    logs = baseline.draw(hosts, DRAWS, random) - candidate.draw(hosts, DRAWS, random)
    low, high = np.exp(np.quantile(logs, [LOW, HIGH]))
    return Estimate(
        value=math.exp(baseline.mean(hosts) - candidate.mean(hosts)),
        ci_low=float(low),
        ci_high=float(high),
    )


def _listed(sizes: Sequence[int]) -> str:
    return listed(list(map(str, sizes)))


PROJECTION = (
    Column("series", "series.series", wraps=True),
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
    lines, bases = [], dict[int, None]()
    for projected in projection.series:
        if not projected.predictions:
            continue
        bases[projected.efficiency_of] = None
        check = "one size of several hosts, so nothing to check it by"
        if projected.check:
            predicted = projected.check.samples_per_s
            check = (
                f"check: predicted from {_listed(projected.check.from_ranks)} ranks:"
                f" {rate(predicted)} at {projected.check.ranks} ({rate_interval(predicted)}),"
                f" measured {rate(projected.check.measured)}"
            )
        lines.append(f"{projected.series}: from {_listed(projected.used)} ranks; {check}")
    ranks = " or ".join(f"{base} rank{'s' if base > 1 else ''}" for base in bases)
    columns = (
        "interval: where one launch is expected; efficiency: a rank's throughput over that with"
        f" {ranks}"
    )
    return [*lines, columns] if lines else []


def refusals(projection: Projection) -> list[str]:
    """Why series are not projected."""
    return [
        f"series '{projected.series}' is not projected: {projected.refusal}"
        for projected in projection.series
        if projected.refusal
    ]
