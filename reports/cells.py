"""Micro-benchmarks: the figures of each arm in each case (operation and size), and how a candidate fares over all of them.

Bandwidths as nccl-tests defines them (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): algbw = size / time, busbw = algbw ×
the case's factor, which the workload gives.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

import pandas as pd

from measurement.record import Case, LaunchRecord
from reports.blocks import by_launch
from reports.schema import ArmSummary, Cell, Estimate, RatioSummary
from reports.statistics import median_interval

VERDICTS = ("faster", "slower", "equivalent", "undecided")
NOT_OFFERED, NO_TIMING = "not offered", "no timing"


def cases_of(records: Sequence[LaunchRecord]) -> list[Case]:
    """What was asked of every arm; nothing in training."""
    return next((record.cases for record in records if record.cases), [])


def not_offered(records: Sequence[LaunchRecord], arm: str, case: str) -> str | None:
    """Why an arm has no such case."""
    return next((record.not_offered[case] for record in records if record.arm == arm and case in record.not_offered), None)


def summarise_cells(records: Sequence[LaunchRecord], blocks: pd.DataFrame, *, confidence: float, seed: int) -> list[Cell]:
    """One arm's figures, case by case.

    Args:
        records: of this arm.
        blocks: of this arm (``reports.blocks.tabulate_blocks``); throughput is in bytes per second.
        confidence: of the descriptive intervals.
        seed: of their bootstrap.
    """
    return [
        _cell(
            case,
            blocks[blocks["case"] == case.name],
            why_not=next((record.not_offered[case.name] for record in records if case.name in record.not_offered), None),
            confidence=confidence,
            seed=seed + zlib.crc32(case.name.encode()),
        )
        for case in cases_of(records)
    ]


def _cell(case: Case, blocks: pd.DataFrame, *, why_not: str | None, confidence: float, seed: int) -> Cell:
    cell = Cell(case=case.name, not_offered=why_not, launches=int(blocks["launch"].nunique()), blocks=len(blocks))
    found = median_interval(by_launch(blocks, "throughput_per_s"), confidence=confidence, seed=seed)
    if found is None:
        return cell
    algbw = Estimate(value=found.estimate, ci_low=found.low, ci_high=found.high)
    least, most = (None if bound is None else case.message_bytes / bound for bound in (algbw.ci_high, algbw.ci_low))
    latency = Estimate(value=case.message_bytes / algbw.value, ci_low=least, ci_high=most)
    return cell.model_copy(
        update={"latency_s": latency, "algbw_bytes_per_s": algbw, "busbw_bytes_per_s": algbw.times(case.busbw_factor)}
    )


def tally(arm: ArmSummary, results: Sequence[RatioSummary]) -> Counter[str]:
    """In how many cells a candidate is faster, slower, equivalent, undecided, not offered, or without timing for another reason."""
    counts: Counter[str] = Counter()
    for result in results:
        if result.candidate == arm.name:
            is_missing = arm.cell(result.case).not_offered is not None
            counts[result.verdict if result.throughput_ratio is not None else NOT_OFFERED if is_missing else NO_TIMING] += 1
    return counts


def tally_words(counts: Counter[str]) -> str:
    """Such as ``faster in 12, slower in 5 of 17 cells; not offered: 9``."""
    measured = [f"{name} in {counts[name]}" for name in VERDICTS if counts[name]]
    total = sum(counts[name] for name in VERDICTS)
    parts = [f"{', '.join(measured)} of {total} cell{'' if total == 1 else 's'}"] if measured else []
    return "; ".join([*parts, *(f"{name}: {counts[name]}" for name in (NOT_OFFERED, NO_TIMING) if counts[name])])
