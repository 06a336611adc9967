"""What a projection looks like: tables for the terminal, and the lines below them."""

from __future__ import annotations

from reports.projection.project import Projection, SeriesProjection
from reports.tables.table import Table, table
from reports.wording.formatting import bounds_text, listed, rate, rate_interval, ratio

TITLES = {
    "series": "series",
    "ranks": "ranks",
    "hosts": "hosts",
    "samples": "samples/s",
    "interval": "90% interval",
    "efficiency": "efficiency",
    "hold": "hold",
    "ring": "ring",
    "measured": "measured",
}
EXPLANATION = (
    "interval: where one launch is expected; efficiency: a rank's throughput over that with {base}; yardsticks: hold, the last "
    "efficiency stays; ring, time grows by (hosts - 1) / hosts"
)


def projection_table(projection: Projection) -> Table:
    """Every prediction, in groups by series."""
    rows = [
        {
            "series": one.series,
            "ranks": str(prediction.ranks),
            "hosts": str(prediction.hosts),
            "samples": rate(prediction.samples_per_s),
            "interval": rate_interval(prediction.samples_per_s),
            "efficiency": f"{prediction.efficiency.value:.0%}",
            "hold": rate(prediction.hold),
            "ring": rate(prediction.ring),
            "measured": rate(prediction.measured or None),
        }
        for one in projection.series
        for prediction in one.predictions
    ]
    return table(TITLES, rows, numeric=TITLES.keys() - {"series"}, wraps=["series"], optional=["measured"], group="series")


def ratio_table(projection: Projection) -> Table:
    """Every ratio of two arms; no rows where nothing is compared."""
    titles = {"arms": "ratio", "ranks": "ranks", "ratio": "throughput", "interval": "90% interval"}
    rows = [
        {
            "arms": f"{one.candidate} / {one.baseline}",
            "ranks": str(one.ranks),
            "ratio": ratio(one.ratio.value),
            "interval": bounds_text(one.ratio.ci_low, one.ratio.ci_high),
        }
        for one in projection.ratios
    ]
    return table(titles, rows, numeric=["ranks", "ratio", "interval"], group="arms")


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
