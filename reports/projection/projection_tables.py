"""What a projection looks like: tables for the terminal, lines below them, and the CSV that other programs read."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.estimate import Estimate
from reports.formats.csv_report import csv_bytes
from reports.projection.project import Projection, SeriesProjection
from reports.schema import WhatIf
from reports.tables.table import Table, table
from reports.wording.formatting import NONE, bounds_text, rate, rate_interval, ratio

CSV_COLUMNS = ("series", "ranks", "samples_per_s", "low", "high", "hold", "ring")
WHAT_IF_COLUMNS = ("scenario", "arm", "samples_per_s", "low", "high", "gain", "fastest")
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
    """What each series rests on and how its largest size was foretold, then what the columns mean."""
    told = [_basis(one) for one in projection.series if one.predictions]
    bases = dict.fromkeys(one.efficiency_of for one in projection.series if one.predictions)
    ranks = " or ".join(f"{base} rank{'s' if base > 1 else ''}" for base in bases)
    return [*told, EXPLANATION.format(base=ranks)] if told else []


def _basis(one: SeriesProjection) -> str:
    sizes = ", ".join(map(str, one.used))
    check = one.check
    if check is None:
        return f"{one.series}: from {sizes} ranks; one size of several hosts, so nothing to check it by"
    smaller, told = ", ".join(map(str, check.from_ranks)), check.samples_per_s
    return (
        f"{one.series}: from {sizes} ranks; check: {smaller} foretell {rate(told)} with {check.ranks} ({rate_interval(told)}), "
        f"measured {rate(check.measured)}"
    )


def refusals(projection: Projection) -> list[str]:
    """Why series are not projected."""
    return [f"series '{one.series}' is not projected: {one.refusal}" for one in projection.series if one.refusal]


def projection_csv(projection: Projection) -> str:
    """One line for each prediction, columns ``CSV_COLUMNS``, six digits."""
    rows = [
        {"series": one.series, "ranks": str(own.ranks), **_csv_figures(own.samples_per_s, hold=own.hold, ring=own.ring)}
        for one in projection.series
        for own in one.predictions
    ]
    return csv_bytes(CSV_COLUMNS, rows).decode()


def what_if_csv(found: Sequence[WhatIf]) -> str:
    """One line for each scenario and arm that something is known of, columns ``WHAT_IF_COLUMNS``, six digits."""
    rows = [
        {"scenario": one.scenario, "arm": arm.arm, "fastest": " ".join(one.fastest)}
        | _csv_figures(arm.throughput_per_s, gain=arm.gain.value)
        for one in found
        for arm in one.arms
        if arm.throughput_per_s and arm.gain
    ]
    return csv_bytes(WHAT_IF_COLUMNS, rows).decode()


def _csv_figures(throughput: Estimate, **more: float) -> dict[str, str]:
    low, high = throughput.bounds or (math.nan, math.nan)
    figures = {"samples_per_s": throughput.value, "low": low, "high": high, **more}
    return {name: _plain(value) for name, value in figures.items()}


def _plain(value: float) -> str:
    """Six digits, never in powers of ten."""
    if not 0 < value < math.inf:
        return NONE
    return f"{value:.{max(0, 5 - math.floor(math.log10(value)))}f}"
