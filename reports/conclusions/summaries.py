"""The figures of each arm and of each ratio, from blocks, steps and records."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from measurement.plan import Plan
from measurement.record import LaunchRecord, ParityResult
from reports.blocks import (
    PAIR_COLUMNS,
    align_pairs,
    by_launch,
    columns,
    copies_of_baseline,
    exposed_comm,
    pair_blocks,
    phase_medians,
    slowest_steps,
)
from reports.cells import cases_of, not_offered, summarise_cells
from reports.limits import data_wait_share, exposed_comm_share
from reports.links import summarise_links
from reports.ranks import summarise_ranks
from reports.schema import ArmError, ArmSummary, Estimate, RatioSummary, Status, StepShares
from reports.statistics import Interval, median_interval, median_of_means_interval, ratio_intervals
from reports.verdict import decide, minutes_to_decide

SEVERITY: tuple[Status, ...] = ("not measured", "ok", "timeout", "failed", "wrong")
PERCENTILES = (5, 25, 50, 75, 95)


def summarise_ratios(plan: Plan, records: Sequence[LaunchRecord], blocks: pd.DataFrame, *, minutes: float) -> list[RatioSummary]:
    """Every arm but the baseline beside it, the control first, in each case: also those without timing."""
    cases = [case.name for case in cases_of(records)] or [""]
    return [
        result
        for case in cases
        for result in _ratios_of_case(plan, records, blocks[blocks["case"] == case], case=case, minutes=minutes)
    ]


def _ratios_of_case(
    plan: Plan, records: Sequence[LaunchRecord], blocks: pd.DataFrame, *, case: str, minutes: float
) -> list[RatioSummary]:
    """The ratios of a case are each other's companions, and its own control has the veto."""
    names = [name for name in plan.all_arms() if name != plan.baseline]
    if not names:
        return []
    pairs = [pair_blocks(plan, blocks, name) for name in names]
    scales = [1 + 1 / len(copies_of_baseline(plan, name)) for name in names]
    intervals = ratio_intervals(align_pairs(pairs), confidence=plan.measurement.confidence, scales=scales)
    control = next((one for one, name in zip(intervals, names, strict=True) if plan.role(name) == "control"), None)
    return [
        _ratio(plan, records, name, case, table, interval, control, minutes)
        for name, table, interval in zip(names, pairs, intervals, strict=True)
    ]


def _ratio(
    plan: Plan,
    records: Sequence[LaunchRecord],
    name: str,
    case: str,
    pairs: pd.DataFrame,
    interval: Interval | None,
    control: Interval | None,
    minutes: float,
) -> RatioSummary:
    role = "control" if plan.role(name) == "control" else "candidate"
    threshold = plan.measurement.noise_threshold
    alone = decide(interval, threshold=threshold)
    verdict = decide(interval, threshold=threshold, control=control) if role == "candidate" else alone
    reasons = (not_offered(records, arm, case) for arm in (name, plan.baseline))
    note = interval.note if interval else next((reason for reason in reasons if reason), "no timing")
    more = None
    if verdict != alone:
        note = f"the interval alone says '{alone}', but the control deviates by as much"
    elif verdict == "undecided":
        more = minutes_to_decide(interval, threshold=threshold, measured_minutes=minutes)
    hosts = next((record.hosts for record in records if record.arm == name), [])
    return RatioSummary(
        baseline=plan.baseline,
        candidate=name,
        case=case,
        role="control" if role == "control" else "candidate",
        world_size=plan.world_size,
        hosts=hosts,
        throughput_ratio=interval.estimate if interval else None,
        ci_low=interval.low if interval else None,
        ci_high=interval.high if interval else None,
        confidence=plan.measurement.confidence,
        verdict=verdict,
        launches=interval.launches if interval else 0,
        pairs=interval.pairs if interval else 0,
        mean_ratio=float(np.exp(pairs["log_ratio"].mean())) if len(pairs) else None,
        more_minutes=more,
        note=note,
        pair_table=columns(pairs, PAIR_COLUMNS),
    )


def summarise_arms(plan: Plan, records: Sequence[LaunchRecord], timed: pd.DataFrame, blocks: pd.DataFrame) -> list[ArmSummary]:
    """Every arm of the plan in its order: also those that failed or were never started."""
    slowest = slowest_steps(timed)
    arms = []
    for name in plan.all_arms():
        own = [record for record in records if record.arm == name]
        summary = _arm(plan, name, own, slowest[slowest["arm"] == name], blocks)
        if not cases_of(records):
            summary.by_rank = summarise_ranks(own, timed[timed["arm"] == name])
            summary.links = summarise_links(plan, own) if summary.by_rank else []
            summary.step_shares = _shares(summary, timed[timed["arm"] == name], blocks[blocks["arm"] == name])
        arms.append(summary)
    return arms


def _arm(plan: Plan, name: str, records: Sequence[LaunchRecord], slowest: pd.DataFrame, blocks: pd.DataFrame) -> ArmSummary:
    asked = plan.all_arms()[name]
    first = records[0] if records else None
    return ArmSummary(
        name=name,
        role=plan.role(name),
        status=_worst(records),
        backend=asked.backend,
        transport=first.transport if first else asked.transport,
        launcher=first.launcher if first else asked.launcher,
        options=asked.options,
        described=next((record.ranks[0].backend for record in records if record.ranks), {}),
        world_size=first.world_size if first else plan.world_size,
        complete=all(record.complete for record in records),
        errors=_errors(records),
        parity=_parity(records),
        peak_memory_bytes=max((peak for r in records if r.status == "ok" for peak in r.peak_memory_bytes), default=None),
        **_timing(plan, name, records, slowest, blocks),
    )


def _timing(plan: Plan, name: str, records: Sequence[LaunchRecord], slowest: pd.DataFrame, blocks: pd.DataFrame) -> dict[str, Any]:
    """The figures of an arm that has any; the bootstrap's seed depends on the plan and the arm's name alone."""
    sync = blocks[(blocks["arm"] == name) & (blocks["kind"] == "sync")]
    step_s = slowest.loc[slowest["kind"] == "sync", "step_s"].to_numpy(dtype=np.float64)
    confidence, seed = plan.measurement.confidence, plan.seed + zlib.crc32(name.encode())
    if cases_of(records):
        cells = summarise_cells(records, sync, confidence=confidence, seed=seed)
        return {"launches": int(sync["launch"].nunique()), "blocks": len(sync), "cells": cells}
    if not len(sync):
        return {}
    throughput = median_interval(by_launch(sync, "throughput_per_s"), confidence=confidence, seed=seed)
    exposed = median_of_means_interval(exposed_comm(blocks, name), confidence=confidence, seed=seed)
    return {
        "launches": int(sync["launch"].nunique()),
        "blocks": len(sync),
        "throughput_per_s": _estimate(throughput),
        "step_time_s": {f"p{p}": float(q) for p, q in zip(PERCENTILES, np.percentile(step_s, PERCENTILES), strict=True)},
        "step_time_quantiles_s": np.percentile(step_s, np.arange(101)).tolist(),
        "phases_s": phase_medians(slowest),
        "exposed_comm_s": _estimate(exposed),
    }


def _shares(summary: ArmSummary, timed: pd.DataFrame, blocks: pd.DataFrame) -> StepShares | None:
    """Of an arm that has timing, from its own steps and blocks."""
    if summary.throughput_per_s is None:
        return None
    exposed = exposed_comm_share(summary.exposed_comm_s, blocks[blocks["kind"] == "sync"])
    return StepShares(data_wait=data_wait_share(timed[timed["kind"] == "sync"]), exposed_comm=exposed)


def _estimate(interval: Interval | None) -> Estimate | None:
    if interval is None:
        return None
    return Estimate(value=interval.estimate, ci_low=interval.low, ci_high=interval.high)


def _worst(records: Sequence[LaunchRecord]) -> Status:
    return max((record.status for record in records), key=SEVERITY.index, default="not measured")


def _errors(records: Sequence[LaunchRecord]) -> list[ArmError]:
    bad = [record for record in records if record.status != "ok" or record.error]
    return [
        ArmError(
            launch=record.launch,
            status=record.status,
            message=record.error.message if record.error else "; ".join(record.parity.failures if record.parity else []),
            ranks=record.error.ranks if record.error else [],
            hosts=record.error.hosts if record.error else [],
            log_tail=record.error.log_tail if record.error else {},
        )
        for record in bad
    ]


def _parity(records: Sequence[LaunchRecord]) -> ParityResult | None:
    """The worst of the launches' results: one that failed, else the largest error."""
    found = [record.parity for record in records if record.parity]
    return max(found, key=lambda parity: (not parity.passed, parity.gradient_error or 0.0), default=None)
