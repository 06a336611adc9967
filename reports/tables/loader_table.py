"""The table of what the loaders alone deliver."""

from __future__ import annotations

from dataclasses import replace

from measurement.loader_record import LoaderRecord
from reports.conclusions.loaders import LoaderDemand, Place, loading_rates, slowest_ranks
from reports.schema import Estimate
from reports.tables.table import Column, Entry, Row, Table
from reports.wording.formatting import NONE, rate, share
from reports.wording.loaders import workers_words


def loader_table(record: LoaderRecord, need: LoaderDemand | None) -> Table:
    """Ranks, hosts and all down, numbers of workers across; last, what share of its loader training needs.

    Figures have two lines: the median, and the least and the greatest.
    """
    rates = loading_rates(record)
    slowest = slowest_ranks(rates)
    columns = [
        Column(name="place", title=""),
        Column(name="host", title="host"),
        *(Column(name=str(workers), title=workers_words(workers), numeric=True) for workers in slowest),
    ]
    rows = [_row(place, {workers: _figures(one) for workers, one in found.items()}) for place, found in rates.items()]
    if need:
        shares = {workers: share(need.samples_per_s / loaded) for workers, loaded in slowest.items()}
        needs = Place(kind="all", name="training needs")
        rows.append(replace(_row(needs, shares), is_total=False))
    return Table(columns=columns, rows=rows)


def _row(place: Place, by_workers: dict[int, str]) -> Row:
    """Ranks are one group, each host is one."""
    by_name = {"place": place.name, "host": place.host, **{str(workers): text for workers, text in by_workers.items()}}
    group = "ranks" if place.kind == "rank" else f"{place.kind} {place.host}"
    return Row(entries={name: Entry(text=text) for name, text in by_name.items()}, group=group, is_total=place.kind == "all")


def _figures(found: Estimate) -> str:
    low, high = (rate(Estimate(value=bound)) if bound is not None else NONE for bound in (found.ci_low, found.ci_high))
    return f"{rate(found)}\n{low}–{high}"
