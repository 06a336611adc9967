"""The table of what the loaders alone deliver."""

from __future__ import annotations

from dataclasses import replace

from measurement.records.loader_record import FilesRead, LoaderRecord, StorageReads
from reports.conclusions.loaders import LoaderDemand, LoaderGroup, bytes_per_file, loading_rates, slowest_ranks
from reports.schema import Estimate
from reports.tables.table import Row, Table, columns, row
from reports.wording.formatting import NONE, rate, share
from reports.wording.loaders import megabytes, workers_words


def loader_table(record: LoaderRecord, need: LoaderDemand | None) -> Table:
    """Ranks, hosts and all down, numbers of workers across; last, what share of its loader training needs.

    Figures have two lines: the median, and the least and the greatest. Where each sample is a file, a third has its megabytes.
    """
    rates = loading_rates(record)
    slowest = slowest_ranks(rates)
    titles = {str(workers): workers_words(workers) for workers in slowest}
    size = bytes_per_file(record)
    rows = [_row(place, {workers: _figures(one, size) for workers, one in found.items()}) for place, found in rates.items()]
    if need:
        shares = {workers: share(need.samples_per_s / loaded) for workers, loaded in slowest.items()}
        needs = LoaderGroup(kind="all", name="training needs")
        rows.append(replace(_row(needs, shares), is_total=False))
    return Table(columns=columns({"place": "", "host": "host", **titles}, numeric=titles), rows=rows)


def _row(place: LoaderGroup, by_workers: dict[int, str]) -> Row:
    """Ranks are one group, each host is one."""
    entries = {"place": place.name, "host": place.host, **{str(workers): text for workers, text in by_workers.items()}}
    group = "ranks" if place.kind == "rank" else f"{place.kind} {place.host}"
    return row(entries, group=group, is_total=place.kind == "all")


def _figures(found: Estimate, bytes_per_sample: float | None) -> str:
    low, high = (rate(bound) if bound is not None else NONE for bound in (found.ci_low, found.ci_high))
    return f"{rate(found)}\n{low}–{high}" + (f"\n{megabytes(found.value * bytes_per_sample)}" if bytes_per_sample else "")


def storage_table(record: LoaderRecord) -> Table:
    """What the file system of each host reads of the files, in either order; no row where samples have no files of their own."""
    titles = {"host": "host", "order": "files read", "files": "files/s", "bytes": "MB/s", "read": "read in all"}
    orders = [(host, storage, order) for host, storage in record.storage.items() for order in ("in_order", "at_random")]
    return Table(columns=columns(titles, numeric=("files", "bytes")), rows=[_storage_row(*own) for own in orders])


def _storage_row(host: str, storage: StorageReads, order: str) -> Row:
    read: FilesRead = getattr(storage, order)
    return row(
        {
            "host": host,
            "order": f"{order.replace('_', ' ')}, {storage.readers} reader{'s' * (storage.readers > 1)}",
            "files": rate(read.files / read.seconds),
            "bytes": rate(read.bytes / read.seconds / 1e6),
            "read": f"{read.files} files, {read.bytes / 1e6:.3g} MB",
        },
        group=host,
    )
