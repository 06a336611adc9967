"""Loaders without a model: the samples per second they deliver, and the samples per second that training needs of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from measurement.errors import RecordError
from measurement.records.loader_record import LoaderRecord, LoaderTurn
from measurement.records.results import ResultsFolder
from reports.conclusions.steps import read_steps
from reports.estimate import Estimate


@dataclass(frozen=True, kw_only=True)
class LoaderGroup:
    """Whose loaders: one rank's, one host's, or all."""

    kind: Literal["rank", "host", "all"]
    name: str
    host: str = ""


Rates = dict[LoaderGroup, dict[int, Estimate]]
"""Samples per second by number of workers: the median over rounds, least and greatest in place of an interval."""


def loading_rates(record: LoaderRecord) -> Rates:
    """Samples per second of every rank, then host, then all together: the sum of what their ranks load in the same round."""
    turns = pd.DataFrame([turn.model_dump() for turn in record.turns], columns=list(LoaderTurn.model_fields))
    turns["per_s"] = turns["samples"] / turns["seconds"]
    places: list[tuple[LoaderGroup, pd.DataFrame]] = [
        *((LoaderGroup(kind="rank", name=f"rank {rank}", host=own["host"].iloc[0]), own) for rank, own in turns.groupby("rank")),
        *((LoaderGroup(kind="host", name="host", host=str(host)), own) for host, own in turns.groupby("host", sort=False)),
        (LoaderGroup(kind="all", name="all"), turns),
    ]
    return {place: _by_workers(own) for place, own in places}


def _by_workers(turns: pd.DataFrame) -> dict[int, Estimate]:
    sums = turns.groupby(["workers", "round"])["per_s"].sum().groupby("workers").agg(["median", "min", "max"])
    return {
        int(workers): Estimate(value=float(median), ci_low=float(low), ci_high=float(high))
        for workers, median, low, high in sums.reset_index().itertuples(index=False, name=None)
    }


def bytes_per_file(record: LoaderRecord) -> float | None:
    """The mean size of the files that hold a sample each; None where there are none."""
    reads = [read for storage in record.storage.values() for read in (storage.in_order, storage.at_random)]
    files = sum(read.files for read in reads)
    return sum(read.bytes for read in reads) / files if files else None


def files_per_s(record: LoaderRecord) -> float:
    """Files that all hosts together read at random, each from its own view of the file system."""
    return sum(storage.at_random.files / storage.at_random.seconds for storage in record.storage.values())


def slowest_ranks(rates: Rates) -> dict[int, float]:
    """Samples per second of the slowest rank, by number of workers: the others would wait for it."""
    ranks = [found for place, found in rates.items() if place.kind == "rank"]
    return {workers: min(found[workers].value for found in ranks) for workers in ranks[0]}


@dataclass(frozen=True, kw_only=True)
class LoaderDemand:
    """What training takes of its loaders, in the arm that takes most."""

    arm: str
    samples_per_s: float
    """Per rank: its samples over the time of its synchronised steps without its data wait. Of the rank for which that is most: the
    steps of the others contain waiting for the rank that waits for data."""


def read_demand(folder: Path, workload: str) -> LoaderDemand:
    """What training took of its loaders, from the folder of a comparison or of a run that stood alone.

    Raises:
        RecordError: no training of this workload was timed there.
    """
    results = ResultsFolder(folder)
    records = results.records()
    if not records:
        raise RecordError(f"--against '{folder}' holds no launch record; give a folder that 'ringside compare' or a runner wrote")
    others = {record.workload for record in records} - {workload}
    if others:
        raise RecordError(f"--against '{folder}' is of workload '{others.pop()}', not '{workload}'; give one of the same workload")
    sync = read_steps(results, records).valid(records).where(kind="sync").rank_blocks
    if not len(sync):
        raise RecordError(f"--against '{folder}' holds no timed steps: no launch of it is ok; measure the training again")
    busy = sync.assign(busy_s=sync["step_s"] - sync["data_wait_s"]).groupby(["arm", "rank"])[["samples", "busy_s"]].sum()
    needs = busy["samples"] / busy["busy_s"]
    return LoaderDemand(arm=str(needs.groupby("arm").max().idxmax()), samples_per_s=float(needs.max()))
