"""From a plan's records to a ``Comparison``: numbers of ``conclusions``, sentences of ``wording``.

Pure: the same records and steps give the same comparison. Every report renders it, none computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from measurement.conditions.same_environment import plan_digest
from measurement.errors import RecordError
from measurement.plans.plan import FLOOR, Plan
from measurement.records.record import LaunchRecord, Manifest
from measurement.records.step_tables import HOST_USE_TYPES, empty
from reports.conclusions.blocks import columns, tabulate_blocks
from reports.conclusions.cases import cases_of
from reports.conclusions.disturbances import block_loads, find_stalls, summarise_load
from reports.conclusions.machine import MACHINE_COLUMNS, machine_by_block
from reports.conclusions.ratios import Evidence, fastest, summarise_ratios
from reports.conclusions.step_terms import Terms
from reports.conclusions.steps import Steps
from reports.conclusions.summaries import crowded_line, summarise_arms
from reports.conclusions.training_results import summarise_training
from reports.schema import ArmSummary, Comparison, LoadFigures, RatioSummary
from reports.statistics.looks import error_share
from reports.training_schema import TrainingSummary
from reports.wording.causes import limit_sentence
from reports.wording.cautions import elsewhere_lines
from reports.wording.comparison_sentences import (
    apart_note,
    control_sentence,
    fastest_sentence,
    findings,
    headline,
    ratio_note,
    warnings,
)
from reports.wording.disturbances import floor_lines, load_sentence, page_fault_lines
from reports.wording.training_sentences import NO_CONTROL, training_findings, training_headline, training_note, training_warnings


def compare(
    plan: Plan,
    records: Sequence[LaunchRecord],
    steps: Steps,
    *,
    host_use: pd.DataFrame | None = None,
    manifest: Manifest | None = None,
) -> Comparison:
    """All that the reports show of a comparison.

    Args:
        plan: what was asked.
        records: every launch of every arm so far, in any order.
        steps: theirs (``reports.conclusions.steps.read_steps``).
        host_use: what the hosts did meanwhile (``measurement.records.results.ResultsFolder.host_use``); None: not known.
        manifest: of the comparison, for the fairness table and where the time went; the figures do not depend on it.

    Raises:
        RecordError: there is no record, or one of another plan.
    """
    _check(plan, records)
    order = [*plan.roles()]
    everything = sorted(records, key=lambda record: (record.launch, order.index(record.arm)))
    records = [record for record in everything if record.role != "floor"]
    timed = steps.that_count(everything)
    terms = Terms(everything, timed, confidence=plan.measurement.confidence)
    timed = timed.without_arm(FLOOR)
    blocks = tabulate_blocks(timed)
    minutes = measured_minutes(plan, everything)
    stalls = find_stalls(timed.slowest)
    loads = block_loads(records)
    beside = empty(HOST_USE_TYPES) if host_use is None else host_use
    arms = summarise_arms(plan, records, timed, blocks, stalls, loads, beside, terms)
    looks = manifest.looks if manifest else []
    share = error_share(looks, until_decided=plan.measurement.until_decided)
    evidence = Evidence(
        plan=plan,
        records=records,
        blocks=blocks,
        stalls=stalls,
        loads=loads,
        arms={arm.name: arm for arm in arms},
        terms=terms,
        minutes=minutes,
        error_share=share,
    )
    results = summarise_ratios(evidence)
    leaders = fastest(evidence, results)
    training = summarise_training(plan, records)
    hosts = len({host for record in records for host in record.hosts})
    sentences = _sentences(plan, results, arms, training, looks, leaders, summarise_load(loads), hosts)
    crowded = crowded_line(max((record.ranks for record in records), key=len, default=[]))
    first = [*floor_lines(everything), *([crowded] if crowded else [])]
    elsewhere = elsewhere_lines(manifest) if manifest else []
    told = [*elsewhere, *first, *(manifest.notes if manifest else []), *sentences.get("warnings", [])]
    sentences["warnings"] = told
    return Comparison(
        **sentences,
        elsewhere=elsewhere,
        training=training,
        measured_minutes=minutes,
        results=results,
        fastest=leaders,
        arms=arms,
        cases=cases_of(records),
        machine_table=columns(machine_by_block(beside[beside["arm"] != FLOOR], loads), MACHINE_COLUMNS),
        block_table=columns(blocks, ["launch", "turn", "round", "arm", "kind", "case", "throughput_per_s"]),
        **_asked(plan, records),
        **_manifest_fields(manifest, records),
    )


def _sentences(
    plan: Plan,
    results: list[RatioSummary],
    arms: list[ArmSummary],
    training: TrainingSummary | None,
    looks: list[int],
    leaders: list[str],
    load: LoadFigures | None,
    hosts: int,
) -> dict[str, Any]:
    """Fields of ``Comparison`` that are sentences. Sets the notes of ratios and of arms that trained to the end, too."""
    for result in results:
        result.note = ratio_note(result, arms) or apart_note(result, arms)
    said = [*findings(results, arms, plan), *fastest_sentence(leaders, plan)]
    remedies = page_fault_lines(arms, freed_memory=plan.freed_memory)
    warned = warnings(plan, arms, results, looks, remedies)
    shares = {arm.name: arm.step_shares for arm in arms if arm.step_shares and arm.role != "control"}
    beside = {"remedies": remedies, "limit": limit_sentence(shares, hosts=hosts)}
    if training is None:
        control = control_sentence(results, plan)
        first = headline(said, control, results, plan, load=load_sentence(load))
        return {
            "headline": first.text,
            "headline_holds": first.holds,
            "headline_findings": first.findings,
            "findings": said,
            "control": control,
            "warnings": warned,
            **beside,
        }
    for arm in training.arms:
        arm.note = training_note(arm, training)
    return {
        "headline": training_headline(training),
        "findings": [*training_findings(training), *said],
        "control": NO_CONTROL,
        "warnings": [*training_warnings(training), *warned],
        **beside,
    }


def _check(plan: Plan, records: Sequence[LaunchRecord]) -> None:
    if not records:
        raise RecordError("there is no launch record yet, so nothing to report; run 'ringside compare' on this folder first")
    for record in records:
        if record.arm not in plan.roles() or record.plan_digest != plan_digest(plan):
            raise RecordError(
                f"the record of launch {record.launch}, arm '{record.arm}', is of another plan (digest {record.plan_digest}, "
                f"this plan's is {plan_digest(plan)}); keep one results folder for each plan"
            )


def measured_minutes(plan: Plan, records: Sequence[LaunchRecord]) -> float:
    """Minutes of wall time that blocks took so far. Arms of a launch share them, unless they ran one after the other."""
    seconds: dict[object, float] = {}
    for record in records:
        key = record.launch if plan.measurement.mode == "interleaved" else (record.launch, record.arm)
        own = record.measuring_s if record.measuring_s is not None else sum(block.wall_s for block in record.blocks)
        seconds[key] = max(seconds.get(key, 0.0), own)
    return sum(seconds.values()) / 60


def _asked(plan: Plan, records: Sequence[LaunchRecord]) -> dict[str, Any]:
    first = records[0]
    ranks = [rank for record in records for rank in record.ranks]
    hosts = dict.fromkeys(host for record in records for host in (record.hosts or [rank.host for rank in record.ranks]))
    return {
        "comparison_id": first.comparison_id,
        "name": plan.name,
        "baseline": plan.baseline,
        "workload": plan.workload,
        "sample_unit": next((record.sample_unit for record in records if record.sample_unit != "samples"), "samples"),
        "device": next((rank.device for rank in ranks), plan.device),
        "world_size": plan.world_size,
        "hosts": list(hosts),
        "local_batch_size": plan.local_batch_size,
        "global_batch_size": plan.local_batch_size * plan.micro_steps * plan.world_size,
        "seed": plan.seed,
        "measurement": plan.measurement.model_dump(mode="json"),
    }


def _manifest_fields(manifest: Manifest | None, records: Sequence[LaunchRecord]) -> dict[str, Any]:
    hosts = {rank.host: rank.fingerprint for record in records for rank in record.ranks if rank.fingerprint}
    fields: dict[str, Any] = {
        "created_at": min(record.started_at for record in records),
        "environment": [{"host": host, **fingerprint} for host, fingerprint in sorted(hosts.items())],
    }
    if manifest is None:
        return fields
    return fields | {
        "created_at": manifest.created_at,
        "ringside_version": manifest.ringside_version,
        "driver": manifest.driver,
        "fairness": manifest.fairness,
        "seconds": manifest.seconds,
    }
