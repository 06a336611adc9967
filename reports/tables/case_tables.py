"""The tables of a micro-benchmark: in how many cases each arm comes out how, then every case."""

from __future__ import annotations

from dataclasses import dataclass

from measurement.records.record import Case
from reports.conclusions.cases import OUTCOMES, count_verdicts
from reports.schema import ArmSummary, Comparison
from reports.tables.table import Entry, Table, columns, row
from reports.tables.verdict_table import verdict_kind
from reports.wording.formatting import NONE, arm_kind, bandwidth, duration, interval, ratio, size_text


@dataclass(frozen=True, kw_only=True)
class CaseEntry(Entry):
    """An arm in a case, with the parts that ``text`` is made of; its kind is that of the verdict."""

    latency: str
    algbw: str
    busbw: str
    ratio: str = ""
    """Empty for the baseline and without timing, as are interval and verdict."""
    interval: str = ""
    verdict: str = ""


def outcome_table(comparison: Comparison) -> Table:
    """One row per arm: in how many cases it is faster, slower, ... than the baseline."""
    rows = []
    for arm in comparison.arms:
        counts = count_verdicts(arm, comparison.results)
        status = Entry(text=arm.status, kind=arm.status)
        by_outcome: dict[str, str | Entry] = {outcome: str(counts[outcome] or "") for outcome in OUTCOMES}
        rows.append(row({"arm": arm.name, "runs_as": arm_kind(arm), "status": status, **by_outcome}))
    titles: dict[str, str] = {"arm": "arm", "runs_as": "runs as", "status": "status"} | {name: name for name in OUTCOMES}
    return Table(columns=columns(titles, numeric=OUTCOMES), rows=rows)


def case_table(comparison: Comparison) -> Table:
    """One row per case, in groups by operation; one column per arm, named like it, after the size in column ``/size``."""
    rows = []
    for case in comparison.cases:
        entries = {arm.name: _case_entry(comparison, arm, case) for arm in comparison.arms}
        rows.append(row({"/size": size_text(case), **entries}, group=case.operation))
    return Table(columns=columns({"/size": "size", **{arm.name: arm.name for arm in comparison.arms}}), rows=rows)


def _case_entry(comparison: Comparison, arm: ArmSummary, case: Case) -> Entry:
    """Latency and bandwidth, then ratio, interval and verdict where there are any; else why there is no figure."""
    figures, result = arm.case(case.name), comparison.result(arm.name, case.name)
    if figures.latency_s is None:
        return Entry(text=figures.not_offered or NONE, short=NONE)
    latency, algbw, busbw = duration(figures.latency_s), bandwidth(figures.algbw_bytes_per_s), bandwidth(figures.busbw_bytes_per_s)
    if result is None or result.throughput_ratio is None:
        return CaseEntry(text=f"{latency}, {busbw}", short=latency, latency=latency, algbw=algbw, busbw=busbw)
    kind, figure = verdict_kind(result), ratio(result.throughput_ratio)
    bounds = f" ({interval(result)})" if result.ci_low is not None else ""
    return CaseEntry(
        text=f"{latency}, {busbw}; {figure}{bounds} {kind}",
        short=f"{latency} {figure} {kind}",
        kind=kind,
        latency=latency,
        algbw=algbw,
        busbw=busbw,
        ratio=figure,
        interval=interval(result),
        verdict=kind,
    )
