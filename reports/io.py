"""What the loaders alone deliver: rates per rank, per host and in all, the table, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.table import Table

from measurement.files import write_whole
from measurement.loading import LoaderTurn, LoadingRecord
from reports.quantities import NONE, rate, share
from reports.schema import Estimate
from reports.training_need import TrainingNeed

ALL = "all"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Whose loaders: one rank's, one host's, or all."""

    kind: str
    """``rank``, ``host`` or ``all``."""
    name: str
    host: str = ""


Rates = dict[Place, dict[int, Estimate]]
"""Samples per second by number of workers: the median over rounds, least and greatest in place of an interval."""


def loading_rates(record: LoadingRecord) -> Rates:
    """Ranks first, then hosts, then all; of several ranks the sum of what they load in the same round."""
    turns = pd.DataFrame([turn.model_dump() for turn in record.turns], columns=list(LoaderTurn.model_fields))
    turns["per_s"] = turns["samples"] / turns["seconds"]
    places: list[tuple[Place, pd.DataFrame]] = [
        *((Place(kind="rank", name=f"rank {rank}", host=own["host"].iloc[0]), own) for rank, own in turns.groupby("rank")),
        *((Place(kind="host", name="host", host=str(host)), own) for host, own in turns.groupby("host", sort=False)),
        (Place(kind=ALL, name=ALL), turns),
    ]
    return {place: _by_workers(own) for place, own in places}


def _by_workers(turns: pd.DataFrame) -> dict[int, Estimate]:
    sums = turns.groupby(["workers", "round"])["per_s"].sum().groupby("workers").agg(["median", "min", "max"])
    return {
        int(workers): Estimate(value=float(median), ci_low=float(low), ci_high=float(high))
        for workers, median, low, high in sums.reset_index().itertuples(index=False, name=None)
    }


def slowest_ranks(rates: Rates) -> dict[int, float]:
    """Samples per second of the slowest rank, by number of workers: the others would wait for it."""
    ranks = [found for place, found in rates.items() if place.kind == "rank"]
    return {workers: min(found[workers].value for found in ranks) for workers in ranks[0]}


def table_cells(record: LoadingRecord, need: TrainingNeed | None) -> tuple[list[str], list[list[str]]]:
    """Header and rows: ranks, hosts and all down, numbers of workers across; last, what share of its loader training needs.

    Cells have two lines: the median, and the least and the greatest.
    """
    rates = loading_rates(record)
    slowest = slowest_ranks(rates)
    header = ["", "host", *(workers_words(workers) for workers in slowest)]
    rows = [[place.name, place.host, *map(_cell, found.values())] for place, found in rates.items()]
    if need:
        rows.append(["training needs", "", *(share(need.samples_per_s / loaded) for loaded in slowest.values())])
    return header, rows


def _cell(found: Estimate) -> str:
    low, high = (rate(Estimate(value=bound)) if bound is not None else NONE for bound in (found.ci_low, found.ci_high))
    return f"{rate(found)}\n{low}–{high}"


def loading_table(record: LoadingRecord, need: TrainingNeed | None = None) -> Table:
    """For the terminal."""
    ranks = f"{record.world_size} rank{'s' if record.world_size > 1 else ''}"
    title = f"Loaders of {record.workload} alone, {ranks}: {record.sample_unit}/s"
    table = Table(title=title, title_justify="left")
    header, rows = table_cells(record, need)
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number > 1 else "left")
    for row in rows:
        if row[0] in (ALL, "host"):
            table.add_section()
        table.add_row(*row, style="bold" if row[0] == ALL else None)
    return table


def conclusions(record: LoadingRecord, need: TrainingNeed | None) -> list[str]:
    """Sentences, the answer first."""
    rates = loading_rates(record)
    in_all, slowest, unit = rates[next(place for place in rates if place.kind == ALL)], slowest_ranks(rates), record.sample_unit
    best = max(in_all, key=lambda workers: in_all[workers].value)
    said = [need_sentence(need, slowest, unit)] if need else []
    most = f"{rate(in_all[best])} {unit}/s in all, {rate(Estimate(value=slowest[best]))} on the slowest rank"
    said.append(f"Most: {_who_load(best)} {most}")
    if best and 0 in in_all:
        said[-1] += f"; {in_all[best].value / in_all[0].value:.1f} times what ranks load by themselves"
    return said


def need_sentence(need: TrainingNeed, slowest: dict[int, float], unit: str) -> str:
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


def write_loading(record: LoadingRecord, need: TrainingNeed | None, folder: Path) -> None:
    """Write ``io.json``, raw, and ``io.html``."""
    from reports.io_page import loading_page

    write_whole(folder / "io.json", record.model_dump_json(indent=1))
    write_whole(folder / "io.html", loading_page(record, need))
