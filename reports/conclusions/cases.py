"""Micro-benchmarks: the figures of each arm in each case (operation and size), and how often it is faster, slower, ...

Bandwidths as nccl-tests defines them (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): algbw = size / time, busbw = algbw ×
the case's factor, which the workload gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import pandas as pd

from measurement.records.record import Case, LaunchRecord
from reports.schema import ArmSummary, CaseFigures, Estimate, RatioSummary, Verdict
from reports.statistics.student import log_interval

Outcome = Verdict | Literal["not offered", "no timing"]
"""What comes out for an arm in a case; the last two where it has no ratio."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
OUTCOMES: tuple[Outcome, ...] = (*VERDICTS, "not offered", "no timing")


def cases_of(records: Sequence[LaunchRecord]) -> list[Case]:
    """The cases of a micro-benchmark; none where the workload is trained."""
    return next((record.cases for record in records if record.cases), [])


def summarise_cases(records: Sequence[LaunchRecord], blocks: pd.DataFrame, *, confidence: float) -> list[CaseFigures]:
    """One arm's figures, case by case: medians over blocks, with Student's interval of the launches' medians."""
    not_offered = {name: why for record in reversed(records) for name, why in record.not_offered.items()}
    return [
        _figures(case, blocks[blocks["case"] == case.name], not_offered.get(case.name), confidence) for case in cases_of(records)
    ]


def _figures(case: Case, blocks: pd.DataFrame, unsupported_reason: str | None, confidence: float) -> CaseFigures:
    medians = blocks.groupby("launch")["throughput_per_s"].median()
    figures = CaseFigures(case=case.name, not_offered=unsupported_reason, launches=len(medians), blocks=len(blocks))
    if not len(blocks):
        return figures
    algbw = log_interval(float(blocks["throughput_per_s"].median()), np.log(medians), confidence=confidence)
    least, most = (None if bound is None else case.size / bound for bound in (algbw.ci_high, algbw.ci_low))
    latency = Estimate(value=case.size / algbw.value, ci_low=least, ci_high=most)
    if case.samples:
        return figures.model_copy(update={"latency_s": latency, "samples_per_s": algbw})
    return figures.model_copy(
        update={"latency_s": latency, "algbw_bytes_per_s": algbw, "busbw_bytes_per_s": algbw.times(case.busbw_factor)}
    )


def count_verdicts(arm: ArmSummary, results: Sequence[RatioSummary]) -> Counter[Outcome]:
    """In how many cases an arm is faster than the baseline, slower, ..."""
    return Counter(_outcome(arm, result) for result in results if result.candidate == arm.name)


def _outcome(arm: ArmSummary, result: RatioSummary) -> Outcome:
    if result.throughput_ratio is not None:
        return result.verdict
    return "not offered" if result.case is not None and arm.case(result.case).not_offered else "no timing"
