"""What the loaders alone deliver: the table, and what follows from it for training."""

from __future__ import annotations

from dataclasses import replace

from measurement.loader_record import LoaderRecord
from reports.conclusions.loaders import LoaderDemand, Place, loading_rates, slowest_ranks
from reports.schema import Estimate
from reports.wording.formatting import NONE, rate, share
from reports.wording.table import Column, Entry, Row, Table


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


def loader_sentences(record: LoaderRecord, need: LoaderDemand | None) -> list[str]:
    """What the loaders deliver, and whether it is enough for training; the answer first."""
    rates = loading_rates(record)
    slowest, unit = slowest_ranks(rates), record.sample_unit
    in_all = next(found for place, found in rates.items() if place.kind == "all")
    best = max(in_all, key=lambda workers: in_all[workers].value)
    said = [need_sentence(need, slowest, unit)] if need else []
    most = f"{rate(in_all[best])} {unit}/s in all, {rate(Estimate(value=slowest[best]))} on the slowest rank"
    said.append(f"Most: {_who_load(best)} {most}")
    if best and 0 in in_all:
        said[-1] += f"; {in_all[best].value / in_all[0].value:.1f} times what ranks load by themselves"
    return said


def need_sentence(need: LoaderDemand, slowest: dict[int, float], unit: str) -> str:
    """Whether the loader is enough for training, with the fewest workers that are."""
    wanted = f"Training ({need.arm}) needs {rate(Estimate(value=need.samples_per_s))} {unit}/s per rank"
    enough = [workers for workers in sorted(slowest) if slowest[workers] >= need.samples_per_s]
    chosen = enough[0] if enough else max(slowest, key=lambda workers: slowest[workers])
    loaded = f"{_who_load(chosen)} {rate(Estimate(value=slowest[chosen]))}"
    part = share(need.samples_per_s / slowest[chosen])
    if enough:
        return f"{wanted}; {loaded}: enough, {part} of it is needed"
    return f"{wanted}; {loaded} at most: too few, {part} of it is needed, and training waits for data"


def _who_load(workers: int) -> str:
    return f"{workers_words(workers)} per rank load{'s' * (workers == 1)}" if workers else "ranks without loader workers load"


def workers_words(workers: int) -> str:
    """``no worker``, ``1 worker``, ``2 workers``."""
    return f"{workers or 'no'} worker{'s' * (workers > 1)}"
