"""What a projection looks like: tables for the terminal, and the lines below them."""

from __future__ import annotations

from reports.projection.project import Projection, SeriesProjection
from reports.tables.table import Column, Table, number, table
from reports.wording.formatting import bounds_text, listed, rate, rate_interval, ratio

EXPLANATION = (
    "interval: where one launch is expected; efficiency: a rank's throughput over that with {base}; yardsticks: hold, the last "
    "efficiency stays; ring, time grows by (hosts - 1) / hosts"
)


PROJECTION = (
    Column("series", "series.series", wraps=True),
    number("ranks", "at.ranks"),
    number("hosts", "at.hosts"),
    number("samples/s", "at.samples_per_s", rate),
    number("90% interval", "at.samples_per_s", rate_interval),
    number("efficiency", "at.efficiency.value", "{:.0%}".format),
    number("hold", "at.hold", rate),
    number("ring", "at.ring", rate),
    number("measured", lambda row: row["at"].measured or None, rate, optional=True),
)
RATIOS = (
    Column("ratio", lambda one: f"{one.candidate} / {one.baseline}"),
    number("ranks", "ranks"),
    number("throughput", "ratio.value", ratio),
    number("90% interval", "ratio", lambda found: bounds_text(found.ci_low, found.ci_high)),
)


def projection_table(projection: Projection) -> Table:
    """Every prediction, in groups by series."""
    rows = [{"series": one, "at": prediction} for one in projection.series for prediction in one.predictions]
    return table(PROJECTION, rows, group="series.series")


def ratio_table(projection: Projection) -> Table:
    """Every ratio of two arms; no rows where nothing is compared."""
    return table(RATIOS, projection.ratios, group=RATIOS[0].read)


def notes(projection: Projection) -> list[str]:
    """What each series rests on and how its largest size was predicted, then what the columns mean."""
    told = [_basis(one) for one in projection.series if one.predictions]
    bases = dict.fromkeys(one.efficiency_of for one in projection.series if one.predictions)
    ranks = " or ".join(f"{base} rank{'s' if base > 1 else ''}" for base in bases)
    return [*told, EXPLANATION.format(base=ranks)] if told else []


def _basis(one: SeriesProjection) -> str:
    sizes = listed(list(map(str, one.used)))
    check = one.check
    if check is None:
        return f"{one.series}: from {sizes} ranks; one size of several hosts, so nothing to check it by"
    smaller, told = listed(list(map(str, check.from_ranks))), check.samples_per_s
    return (
        f"{one.series}: from {sizes} ranks; check: predicted from {smaller} ranks: {rate(told)} at {check.ranks} "
        f"({rate_interval(told)}), measured {rate(check.measured)}"
    )


def refusals(projection: Projection) -> list[str]:
    """Why series are not projected."""
    return [f"series '{one.series}' is not projected: {one.refusal}" for one in projection.series if one.refusal]
