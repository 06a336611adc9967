"""The figures of each arm, from blocks, steps and records; of a micro-benchmark case by case.

Bandwidths as nccl-tests defines them (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): algbw =
size / time, busbw = algbw × the factor of the case, which the workload gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from measurement.probes.flops import peak_of
from measurement.records.record import Case, Failure, LaunchRecord, RankReport
from reports.conclusions.evidence import Evidence, cases_of
from reports.conclusions.machine import (
    energy_per_sample_j,
    most_page_faults,
    summarise_gaps,
    summarise_links,
    summarise_load,
    summarise_machine,
    summarise_stalls,
)
from reports.conclusions.ranks import summarise_ranks
from reports.conclusions.step_terms import means, step_shares, step_terms, thread_figures
from reports.conclusions.steps import first_ranks, throughput_interval
from reports.schema import (
    PLANS_PEAK,
    ArmError,
    ArmSummary,
    CaseFigures,
    Estimate,
    RatioSummary,
    ResourceFigures,
    Status,
    Verdict,
)
from reports.statistics.student import log_interval, t_interval

Outcome = Verdict | Literal["not offered", "no timing"]
"""What comes out for an arm in a case; the last two where it has no ratio."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


def summarise_cases(
    records: Sequence[LaunchRecord], blocks: pd.DataFrame, *, confidence: float
) -> list[CaseFigures]:
    """One arm's figures, case by case: medians over blocks, with Student's interval of the
    launches' medians.
    """
    not_offered = {
        name: why for record in reversed(records) for name, why in record.not_offered.items()
    }
    return [
        _figures(case, blocks[blocks["case"] == case.name], not_offered.get(case.name), confidence)
        for case in cases_of(records)
    ]


def _figures(
    case: Case, blocks: pd.DataFrame, unsupported_reason: str | None, confidence: float
) -> CaseFigures:
    medians = blocks.groupby("launch")["throughput_per_s"].median()
    figures = CaseFigures(
        case=case.name, not_offered=unsupported_reason, launches=len(medians), blocks=len(blocks)
    )
    if not len(blocks):
        return figures
    speed = log_interval(
        float(blocks["throughput_per_s"].median()), np.log(medians), confidence=confidence
    )
    longest, shortest = (
        None if bound is None else case.size / bound for bound in (speed.ci_low, speed.ci_high)
    )
    latency = Estimate(value=case.size / speed.value, ci_low=shortest, ci_high=longest)
    rates = {"algbw_bytes_per_s": speed, "busbw_bytes_per_s": speed.times(case.busbw_factor)}
    return figures.model_copy(
        update={"latency_s": latency, **({"samples_per_s": speed} if case.samples else rates)}
    )


def count_verdicts(arm: ArmSummary, results: Sequence[RatioSummary]) -> Counter[Outcome]:
    """In how many cases an arm is faster than the baseline, slower, ..."""
    return Counter(_outcome(arm, result) for result in results if result.candidate == arm.name)


def _outcome(arm: ArmSummary, result: RatioSummary) -> Outcome:
    if result.throughput_ratio is not None:
        return result.verdict
    return (
        "not offered"
        if result.case is not None and arm.case(result.case).not_offered
        else "no timing"
    )


SEVERITY: tuple[Status, ...] = ("not measured", "ok", "timeout", "failed", "wrong")
PERCENTILES = (5, 25, 50, 75, 95)


def summarise_arm(evidence: Evidence, name: str) -> ArmSummary:
    """An arm of the plan; also one that failed or was never started."""
    records = [record for record in evidence.records if record.arm == name]
    counters = evidence.block_counters[evidence.block_counters["arm"] == name]
    sync = evidence.blocks[(evidence.blocks["arm"] == name) & (evidence.blocks["kind"] == "sync")]
    timing: dict[str, Any] = (
        {"launches": sync["launch"].nunique(), "blocks": len(sync)}
        if len(sync) or evidence.cases
        else {}
    )
    if evidence.cases:
        timing["cases"] = summarise_cases(records, sync, confidence=evidence.confidence)
    else:
        timing |= _training_steps(evidence, name, records, sync, counters)
    machine = summarise_machine(records, evidence.host_use[evidence.host_use["arm"] == name])
    return ArmSummary(
        **_identity(evidence, name, records),
        **timing,
        skipped_steps=counters.loc[counters["kind"] == "sync", "skipped_steps"].sum(),
        load=summarise_load(counters),
        machine=machine,
        energy_per_sample_j=energy_per_sample_j(machine, timing.get("throughput_per_s")),
        resources=_resources(evidence, records, timing.get("throughput_per_s")),
    )


def _resources(
    evidence: Evidence, records: Sequence[LaunchRecord], throughput: Estimate | None
) -> ResourceFigures | None:
    """Devices and memory of an arm."""
    ranks = first_ranks(records)
    if not ranks:
        return None
    peaks = [
        float(max(record.peak_memory_bytes))
        for record in records
        if record.status == "ok" and record.peak_memory_bytes
    ]
    fields: dict[str, Any] = {
        "device": "core" if any(rank.device == "cpu" for rank in ranks) else "GPU",
        "memory_bytes": t_interval(peaks, confidence=evidence.confidence),
    }
    units = compute_units(ranks)
    if throughput and units:
        rate = throughput.times(1 / units)
        fields |= {"per_device_per_s": rate, **_flops(evidence, records, ranks, rate)}
    return ResourceFigures(**fields)


def _flops(
    evidence: Evidence, records: Sequence[LaunchRecord], ranks: Sequence[RankReport], rate: Estimate
) -> dict[str, Any]:
    """Fields of ``ResourceFigures``: model FLOP/s and MFU, from the throughput of one device."""
    plan = evidence.plan
    same_work = [] if plan.has_own_work else evidence.records
    count = next((record.flops for record in [*records, *same_work] if record.flops), None)
    if count is None or not count.samples or not count.by_operation:
        return {
            "flops_note": f"could not be counted: {count.error or 'none has a formula'}"
            if count
            else None
        }
    each = sum(count.by_operation.values()) / count.samples
    fields: dict[str, Any] = {"flops_per_sample": each, "flops_per_s": rate.times(each)}
    if count.without_formula:
        left_out = ", ".join(count.without_formula)
        fields["flops_note"] = f"of {left_out} are not counted: there is no formula"
    peak, source = plan.peak_tflops, PLANS_PEAK
    device_peak = peak_of(ranks[0].device) if len({rank.device for rank in ranks}) == 1 else None
    if peak is None and device_peak:
        peak, source = device_peak.at(count, precision=plan.precision), device_peak.source
    if peak is None:
        return fields
    return fields | {
        "mfu": rate.times(each / (1e12 * peak)),
        "peak_flops_per_s": 1e12 * peak,
        "peak_source": source,
    }


def _identity(evidence: Evidence, name: str, records: Sequence[LaunchRecord]) -> dict[str, Any]:
    """Fields of ``ArmSummary``: what the arm is, whether it is right, and what its ranks ran on."""
    plan, asked = evidence.plan, evidence.plan.compared_arms()[name]
    first = records[0] if records else None
    ran = first or asked
    ranks = first_ranks(records)
    parity = [record.parity for record in records if record.parity]
    batch_ranks = ranks if plan.batches else []
    return {
        "name": name,
        "role": plan.role(name),
        "status": max(
            (record.status for record in records), key=SEVERITY.index, default="not measured"
        ),
        "backend": asked.backend,
        "transport": ran.transport,
        "launcher": ran.launcher,
        "options": asked.options,
        "command": first.command if first else "",
        "described": ranks[0].backend if ranks else {},
        "world_size": first.world_size if first else plan.world_size,
        "local_batch_size": (ranks[0].local_batch_size or None)
        if ranks and not plan.are_scripts
        else None,
        "samples_per_step": sum(rank.local_batch_size * rank.micro_steps for rank in batch_ranks)
        or None,
        "complete": all(record.complete for record in records),
        "cores_per_rank": (len(ranks[0].affinity) or None) if ranks else None,
        "threads_per_rank": ranks[0].threads if ranks else None,
        "compute_units": compute_units(ranks) if ranks else None,
        "errors": [_error(record) for record in records if record.status != "ok" or record.error],
        "parity": max(
            parity,
            key=lambda result: (not result.passed, result.gradient_error or 0.0),
            default=None,
        ),
    }


def compute_units(ranks: Sequence[RankReport]) -> int | None:
    """Cores that the ranks' threads can use, host by host; of ranks on GPUs these, or as many as
    the backend says it uses.

    None where the platform does not report it.
    """
    if any(not rank.affinity for rank in ranks):
        return None
    if all(rank.fingerprint.get("gpus") and rank.device != "cpu" for rank in ranks):
        cards = {(rank.host, rank.gpu or rank.rank) for rank in ranks}
        return max(len(cards), sum(int(rank.backend.get("gpus", 0)) for rank in ranks))
    hosts = {rank.host: [other for other in ranks if other.host == rank.host] for rank in ranks}
    return sum(
        min(
            len({core for rank in on_host for core in rank.affinity}),
            sum(rank.threads for rank in on_host),
        )
        for on_host in hosts.values()
    )


def _error(record: LaunchRecord) -> ArmError:
    error = record.error or Failure(
        message="; ".join(record.parity.failures if record.parity else [])
    )
    return ArmError(launch=record.launch, status=record.status, **error.model_dump())


def _training_steps(
    evidence: Evidence,
    name: str,
    records: Sequence[LaunchRecord],
    sync: pd.DataFrame,
    counters: pd.DataFrame,
) -> dict[str, Any]:
    """Fields of ``ArmSummary``: how fast its steps are, and why."""
    steps, confidence = evidence.steps.where(arm=name), evidence.confidence
    by_launch = evidence.terms.by_launch.get(name)
    terms = None if by_launch is None else step_terms(by_launch, confidence=confidence)
    by_rank = summarise_ranks(records, steps.rank_blocks, evidence.terms.stragglers.get(name))
    fields = {
        "by_rank": by_rank,
        "links": summarise_links(evidence.plan, records) if by_rank else [],
        "step_terms_s": terms,
        "gaps": summarise_gaps(records),
        "page_faults": most_page_faults(counters),
        "samples_from": next(
            (report.samples_from for record in records for report in record.scripts), None
        ),
        "script_starts": max((record.script_starts for record in records), default=1),
        "threads_s": thread_figures(counters, confidence=confidence),
    }
    if not len(sync):
        return fields
    exchanged, phases = steps.where(kind="sync"), evidence.terms.phases.get(name)
    slowest = exchanged.slowest
    return fields | {
        "throughput_per_s": throughput_interval(sync, confidence=confidence),
        "step_phases_s": {}
        if phases is None
        else means(phases.loc[:, phases.any()], confidence=confidence),
        "stalls": summarise_stalls(evidence.stalls[evidence.stalls["arm"] == name], sync),
        "step_shares": step_shares(exchanged.rank_blocks, terms),
        "step_time_s": {
            f"p{p}": float(q)
            for p, q in zip(PERCENTILES, np.percentile(slowest["step_s"], PERCENTILES), strict=True)
        },
    }
