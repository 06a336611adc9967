"""The tables of a micro-benchmark: in how many cases each arm comes out how, then every case."""

from __future__ import annotations

from dataclasses import dataclass

from measurement.records.record import Case
from reports.conclusions.summaries import OUTCOMES, count_verdicts
from reports.schema import ArmSummary, CaseFigures, Comparison
from reports.tables.table import Entries, Entry, Table, table
from reports.tables.verdict_table import verdict_kind
from reports.wording.formatting import NONE, arm_kind, bandwidth, duration, interval, rate, ratio, size_text


@dataclass(frozen=True, kw_only=True)
class CaseEntry(Entry):
    """An arm in a case, with the parts that ``text`` is made of; its kind is that of the verdict."""

    first: str
    """Latency; of a loader, samples per second."""
    below: str
    """Bandwidths; of a loader, the time of a batch."""
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
        by_outcome: Entries = {outcome: str(counts[outcome] or "") for outcome in OUTCOMES}
        rows.append({"arm": arm.name, "runs_as": arm_kind(arm), "status": status, **by_outcome})
    titles: dict[str, str] = {"arm": "arm", "runs_as": "runs as", "status": "status"} | {name: name for name in OUTCOMES}
    return table(titles, rows, numeric=OUTCOMES)


def case_table(comparison: Comparison) -> Table:
    """One row per case, in groups by operation; one column per arm, named like it, after the size in column ``/size``."""
    names = [arm.name for arm in comparison.arms]
    rows = [
        {"/size": size_text(case), "/operation": case.operation}
        | {arm.name: _case_entry(comparison, arm, case) for arm in comparison.arms}
        for case in comparison.cases
    ]
    return table({"/size": "size", **dict(zip(names, names, strict=True))}, rows, group="/operation")


def case_figures(figures: CaseFigures) -> tuple[str, str, str]:
    """An arm's two figures, and what stands below the first: latency and bandwidths; of a loader, samples and time of a batch."""
    latency = duration(figures.latency_s)
    if figures.samples_per_s is not None:
        batch = f"a batch in {latency}"
        return f"{rate(figures.samples_per_s)} samples/s", batch, batch
    algbw, busbw = bandwidth(figures.algbw_bytes_per_s), bandwidth(figures.busbw_bytes_per_s)
    return latency, busbw, f"alg {algbw}, bus {busbw}"


def _case_entry(comparison: Comparison, arm: ArmSummary, case: Case) -> Entry:
    """Latency and bandwidth, then ratio, interval and verdict where there are any; else why there is no figure."""
    figures, result = arm.case(case.name), comparison.result(arm.name, case.name)
    if figures.latency_s is None:
        return Entry(text=figures.not_offered or NONE, short=NONE)
    first, second, below = case_figures(figures)
    text = f"{first}, {second}"
    if result is None or result.throughput_ratio is None:
        return CaseEntry(text=text, short=first, first=first, below=below)
    kind, figure = verdict_kind(result), ratio(result.throughput_ratio)
    bounds = f" ({interval(result)})" if result.ci_low is not None else ""
    return CaseEntry(
        text=f"{text}; {figure}{bounds} {kind}",
        short=f"{first} {figure} {kind}",
        kind=kind,
        first=first,
        below=below,
        ratio=figure,
        interval=interval(result),
        verdict=kind,
    )
