"""The figures of each arm, from blocks, steps and records."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from measurement.plans.plan import Plan
from measurement.probes.core_use import crowded_warning
from measurement.records.record import LaunchRecord, ParityResult, RankReport
from reports.conclusions.blocks import phase_medians, throughput_interval
from reports.conclusions.cases import cases_of, summarise_cases
from reports.conclusions.disturbances import summarise_load, summarise_page_faults, summarise_stalls
from reports.conclusions.machine import energy_per_sample_j, summarise_links, summarise_machine
from reports.conclusions.ranks import summarise_ranks
from reports.conclusions.step_terms import Terms, step_shares
from reports.conclusions.steps import Steps
from reports.schema import ArmError, ArmSummary, Status

SEVERITY: tuple[Status, ...] = ("not measured", "ok", "timeout", "failed", "wrong")
PERCENTILES = (5, 25, 50, 75, 95)


def summarise_arms(
    plan: Plan,
    records: Sequence[LaunchRecord],
    timed: Steps,
    blocks: pd.DataFrame,
    stalls: pd.DataFrame,
    loads: pd.DataFrame,
    host_use: pd.DataFrame,
    terms: Terms,
) -> list[ArmSummary]:
    """Every arm of the plan in its order, with those that failed or were never started."""
    arms = []
    for name in plan.compared_arms():
        own = [record for record in records if record.arm == name]
        steps = timed.where(arm=name)
        summary = _arm(plan, name, own, steps.slowest, blocks)
        summary.load = summarise_load(loads[loads["arm"] == name])
        summary.machine = summarise_machine(own, host_use[host_use["arm"] == name])
        summary.energy_per_sample_j = energy_per_sample_j(summary.machine, summary.throughput_per_s)
        if not cases_of(records):
            summary.by_rank = summarise_ranks(own, steps.rank_blocks, terms.straggler_of(name))
            summary.links = summarise_links(plan, own) if summary.by_rank else []
            summary.stalls = summarise_stalls(name, stalls, blocks)
            summary.page_faults = summarise_page_faults(own)
            summary.step_terms_s, summary.threads_s = terms.of(name), terms.threads_of(name)
            sync = steps.where(kind="sync").rank_blocks
            summary.step_shares = step_shares(sync, summary.step_terms_s) if len(sync) else None
        arms.append(summary)
    return arms


def _arm(plan: Plan, name: str, records: Sequence[LaunchRecord], slowest: pd.DataFrame, blocks: pd.DataFrame) -> ArmSummary:
    asked = plan.compared_arms()[name]
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
        **_per_rank(records),
        skipped_steps=sum(block.skipped_steps for record in records for block in record.blocks if block.kind == "sync"),
        restarts=sum(block.restarts for record in records for block in record.blocks if block.kind == "sync"),
        compute_units=next((compute_units(record.ranks) for record in records if record.ranks), None),
        errors=_errors(records),
        parity=_parity(records),
        peak_memory_bytes=max((peak for r in records if r.status == "ok" for peak in r.peak_memory_bytes), default=None),
        **_timing(plan, name, records, slowest, blocks),
    )


def _per_rank(records: Sequence[LaunchRecord]) -> dict[str, int | None]:
    """Cores that a rank may use, and its threads; None where no rank has reported, or the platform does not tell."""
    rank = next((record.ranks[0] for record in records if record.ranks), None)
    return {"cores_per_rank": (len(rank.affinity) or None) if rank else None, "threads_per_rank": rank.threads if rank else None}


def crowded_line(ranks: Sequence[RankReport]) -> str | None:
    """That ranks on CPUs share cores, where they do."""
    if not ranks or any(rank.device != "cpu" for rank in ranks):
        return None
    cores: dict[str, set[int]] = {}
    for rank in ranks:
        cores.setdefault(rank.host, set()).update(rank.affinity)
    return crowded_warning(len(ranks), sum(map(len, cores.values())) or None)


def compute_units(ranks: Sequence[RankReport]) -> int | None:
    """Cores that the ranks' threads can use, host by host; of ranks on GPUs one each, or as many as the backend says it uses.

    None where the platform does not tell.
    """
    if any(not rank.affinity for rank in ranks):
        return None
    if all(rank.fingerprint.get("gpus") and rank.device != "cpu" for rank in ranks):
        return sum(int(rank.backend.get("gpus", 1)) for rank in ranks)
    hosts: dict[str, list[RankReport]] = {}
    for rank in ranks:
        hosts.setdefault(rank.host, []).append(rank)
    return sum(min(len({core for one in own for core in one.affinity}), sum(one.threads for one in own)) for own in hosts.values())


def _timing(plan: Plan, name: str, records: Sequence[LaunchRecord], slowest: pd.DataFrame, blocks: pd.DataFrame) -> dict[str, Any]:
    """Fields of ``ArmSummary``, none without timing. The bootstrap's seed depends on the plan and the arm's name alone."""
    sync = blocks[(blocks["arm"] == name) & (blocks["kind"] == "sync")]
    step_s = slowest.loc[slowest["kind"] == "sync", "step_s"].to_numpy(dtype=np.float64)
    confidence, seed = plan.measurement.confidence, plan.seed + zlib.crc32(name.encode())
    if cases_of(records):
        cases = summarise_cases(records, sync, confidence=confidence, seed=seed)
        return {"launches": int(sync["launch"].nunique()), "blocks": len(sync), "cases": cases}
    if not len(sync):
        return {}
    throughput = throughput_interval(sync, confidence=confidence, seed=seed)
    return {
        "launches": int(sync["launch"].nunique()),
        "blocks": len(sync),
        "throughput_per_s": throughput.as_estimate() if throughput else None,
        "step_time_s": {f"p{p}": float(q) for p, q in zip(PERCENTILES, np.percentile(step_s, PERCENTILES), strict=True)},
        "step_time_quantiles_s": np.percentile(step_s, np.arange(101)).tolist(),
        "phases_s": phase_medians(slowest),
    }


def _worst(records: Sequence[LaunchRecord]) -> Status:
    return max((record.status for record in records), key=SEVERITY.index, default="not measured")


def _errors(records: Sequence[LaunchRecord]) -> list[ArmError]:
    bad = [record for record in records if record.status != "ok" or record.error]
    return [
        ArmError(
            launch=record.launch,
            status=record.status,
            message=record.error.message if record.error else "; ".join(record.parity.failures if record.parity else []),
            excerpt=record.error.excerpt if record.error else [],
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
