"""What was measured of a comparison's arms, worked out once, and from it the figures of each arm.

Those of a micro-benchmark are made case by case.

Bandwidths as nccl-tests defines them (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): algbw =
size / time, busbw = algbw × the factor of the case, which the workload gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from measurement.conditions.differences import Difference
from measurement.flops import peak_of
from measurement.plans.plan import FLOOR, Plan
from measurement.records.record import Case, Failure, LaunchRecord, Manifest, RankReport
from measurement.records.step_tables import HOST_USE_TYPES, empty
from reports.conclusions.machine import (
    energy_per_sample_j,
    find_stalls,
    most_page_faults,
    summarise_gaps,
    summarise_links,
    summarise_load,
    summarise_machine,
    summarise_stalls,
    tabulate_counters,
)
from reports.conclusions.ranks import summarise_ranks
from reports.conclusions.step_terms import Terms, means, step_shares, step_terms, thread_figures
from reports.conclusions.steps import Steps, first_ranks, tabulate_blocks, throughput_interval
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
from reports.statistics.budget import error_share
from reports.statistics.student import log_interval, t_interval

Outcome = Verdict | Literal["not offered", "no timing"]
"""What comes out for an arm in a case; the last two where it has no ratio."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
SEVERITY: tuple[Status, ...] = ("not measured", "ok", "timeout", "failed", "wrong")
PERCENTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was measured of a comparison's arms, the floor left out."""

    plan: Plan
    records: Sequence[LaunchRecord]
    """By launch."""
    steps: Steps
    """Those that count."""
    blocks: pd.DataFrame
    """``reports.conclusions.steps.tabulate_blocks``."""
    stalls: pd.DataFrame
    """``reports.conclusions.machine.find_stalls``."""
    block_counters: pd.DataFrame
    """``reports.conclusions.machine.tabulate_counters``."""
    host_use: pd.DataFrame
    """``measurement.records.results.ResultsFolder.host_use``."""
    terms: Terms
    """Terms of the steps, with the floor as reference."""
    minutes: float
    """Minutes of blocks so far."""
    spent_minutes: float
    """Minutes of launches so far, starts and checks included."""
    unlike_work: Mapping[str, Sequence[Difference]]
    """By arm, what of its work differs from the baseline's and withholds a verdict."""
    error_share: float
    """That this analysis may spend (``reports.statistics.budget``)."""

    @classmethod
    def gather(
        cls,
        plan: Plan,
        records: Sequence[LaunchRecord],
        steps: Steps,
        *,
        host_use: pd.DataFrame | None,
        manifest: Manifest | None,
        unlike_work: Mapping[str, Sequence[Difference]] | None = None,
    ) -> Evidence:
        """Work it out from all records, the floor's among them, and all of their steps.

        ``manifest``: None: no driver ran it.
        """
        of_arms = [record for record in records if record.arm != FLOOR]
        valid, counters = steps.valid(records), tabulate_counters(records)
        timed = valid.without_arm(FLOOR)
        beside = empty(HOST_USE_TYPES) if host_use is None else host_use
        return cls(
            plan=plan,
            records=of_arms,
            steps=timed,
            blocks=tabulate_blocks(timed),
            stalls=find_stalls(timed.slowest),
            block_counters=counters[counters["arm"] != FLOOR],
            host_use=beside[beside["arm"] != FLOOR],
            terms=Terms.find(records, valid),
            minutes=sum(measuring_seconds(plan, records).values()) / 60,
            spent_minutes=sum(launch_seconds(records).values()) / 60,
            unlike_work=unlike_work or {},
            error_share=error_share(
                manifest.looks if manifest else [], until_decided=plan.measurement.until_decided
            ),
        )

    @property
    def threshold(self) -> float:
        """A ratio within this of 1 is of no practical interest."""
        return self.plan.measurement.noise_threshold

    @property
    def confidence(self) -> float:
        """With which intervals hold."""
        return self.plan.measurement.confidence

    @property
    def cases(self) -> list[Case]:
        """Those of a micro-benchmark; none where the workload is trained."""
        return cases_of(self.records)

    @property
    def are_runs(self) -> bool:
        """Whether people started the runs themselves, so that arms took no turns."""
        return self.plan.measurement.mode == "separate"


def cases_of(records: Sequence[LaunchRecord]) -> list[Case]:
    """The cases of a micro-benchmark; none where the workload is trained."""
    return next((record.cases for record in records if record.cases), [])


def launch_seconds(records: Sequence[LaunchRecord]) -> dict[int, float]:
    """Wall time of each launch; of one whose driver was killed, what is known."""
    by_launch: dict[int, float] = {}
    for record in records:
        known = (record.start_s or 0.0) + (record.measuring_s or 0.0)
        seconds = known if record.launch_s is None else record.launch_s
        by_launch[record.launch] = max(by_launch.get(record.launch, 0.0), seconds)
    return by_launch


def measuring_seconds(plan: Plan, records: Sequence[LaunchRecord]) -> dict[int, float]:
    """Wall time of the blocks of each launch.

    Arms of a launch share it, unless they ran one after the other.
    """
    launches: dict[int, list[float]] = {}
    for record in records:
        blocks_s = (
            record.measuring_s
            if record.measuring_s is not None
            else sum(block.wall_s for block in record.blocks)
        )
        launches.setdefault(record.launch, []).append(blocks_s)
    whole = max if plan.measurement.mode == "interleaved" else sum
    return {launch: whole(seconds) for launch, seconds in launches.items()}


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
    fields: dict[str, Any] = {"launches": len(medians), "blocks": len(blocks)}
    if len(blocks):
        speed = log_interval(
            float(blocks["throughput_per_s"].median()), np.log(medians), confidence=confidence
        )
        longest, shortest = (
            None if bound is None else case.size / bound for bound in (speed.ci_low, speed.ci_high)
        )
        fields["latency_s"] = Estimate(
            value=case.size / speed.value, ci_low=shortest, ci_high=longest
        )
        if case.samples:
            fields["samples_per_s"] = speed
        else:
            fields["algbw_bytes_per_s"] = speed
            fields["busbw_bytes_per_s"] = speed.times(case.busbw_factor)
    return CaseFigures(case=case.name, not_offered=unsupported_reason, **fields)


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


def summarise_arm(evidence: Evidence, name: str) -> ArmSummary:
    """An arm of the plan; also one that failed or was never started."""
    records = [record for record in evidence.records if record.arm == name]
    counters = evidence.block_counters[evidence.block_counters["arm"] == name]
    sync = evidence.blocks[(evidence.blocks["arm"] == name) & (evidence.blocks["kind"] == "sync")]
    timing: dict[str, Any] = {"launches": sync["launch"].nunique(), "blocks": len(sync)}
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
    if count is None:
        return {}
    if not count.samples or not count.by_operation:
        return {"flops_note": f"could not be counted: {count.error or 'none has a formula'}"}
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
    fields: dict[str, Any] = {
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
        "world_size": first.world_size if first else plan.world_size,
        "complete": all(record.complete for record in records),
        "errors": [_error(record) for record in records if record.status != "ok" or record.error],
        "parity": max(
            (record.parity for record in records if record.parity),
            key=lambda result: (not result.passed, result.gradient_error or 0.0),
            default=None,
        ),
    }
    if ranks:
        fields |= {
            "described": ranks[0].backend,
            "local_batch_size": None if plan.are_scripts else ranks[0].local_batch_size or None,
            "cores_per_rank": len(ranks[0].affinity) or None,
            "threads_per_rank": ranks[0].threads,
            "compute_units": compute_units(ranks),
        }
    if plan.batches:
        samples = sum(rank.local_batch_size * rank.micro_steps for rank in ranks)
        fields["samples_per_step"] = samples or None
    return fields


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
    fields: dict[str, Any] = {
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
    if phases is not None:
        shown = phases.loc[:, phases.any()]
        fields["step_phases_s"] = means(shown, confidence=confidence)
    step_s = np.percentile(exchanged.slowest["step_s"], PERCENTILES)
    return fields | {
        "throughput_per_s": throughput_interval(sync, confidence=confidence),
        "stalls": summarise_stalls(evidence.stalls[evidence.stalls["arm"] == name], sync),
        "step_shares": step_shares(exchanged.rank_blocks, terms),
        "step_time_s": {f"p{p}": float(q) for p, q in zip(PERCENTILES, step_s, strict=True)},
    }
