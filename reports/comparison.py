"""What is concluded from a plan's records.

Pure: records and steps in, a ``Comparison`` out, the same for the same records. Every report renders it, none computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from measurement.errors import RecordError
from measurement.plan import Plan
from measurement.record import LaunchRecord, Manifest
from reports.blocks import columns, tabulate_blocks, timed_steps
from reports.cells import cases_of
from reports.limits import limit_sentence
from reports.schema import Comparison
from reports.summaries import summarise_arms, summarise_ratios
from reports.training import summarise_training
from reports.training_wording import NO_CONTROL, training_findings, training_headline, training_warnings
from reports.wording import control_sentence, findings, headline, warnings

__all__ = ["Comparison", "compare", "measured_minutes"]


def compare(plan: Plan, records: Sequence[LaunchRecord], steps: pd.DataFrame, *, manifest: Manifest | None = None) -> Comparison:
    """Conclude.

    Args:
        plan: what was asked.
        records: every launch of every arm so far, in any order.
        steps: their raw steps, with columns ``launch`` and ``arm`` (``reports.blocks.read_steps``).
        manifest: of the comparison, for the fairness table and where the time went; the figures do not depend on it.

    Raises:
        RecordError: there is no record, or one of another plan.
    """
    _check(plan, records)
    records = sorted(records, key=lambda record: (record.launch, list(plan.all_arms()).index(record.arm)))
    timed = timed_steps(records, steps)
    blocks = tabulate_blocks(timed)
    minutes = measured_minutes(plan, records)
    results = summarise_ratios(plan, records, blocks, minutes=minutes)
    arms = summarise_arms(plan, records, timed, blocks)
    training = summarise_training(plan, records)
    said = findings(results, arms, plan)
    control = NO_CONTROL if training else control_sentence(results, plan)
    return Comparison(
        headline=training_headline(training) if training else headline(said, control, results),
        findings=[*training_findings(training), *said] if training else said,
        control=control,
        warnings=[*(training_warnings(training) if training else []), *warnings(plan, arms, results)],
        training=training,
        limit=limit_sentence({arm.name: arm.step_shares for arm in arms if arm.step_shares and arm.role != "control"}),
        measured_minutes=minutes,
        results=results,
        arms=arms,
        cases=cases_of(records),
        block_table=columns(blocks, ["launch", "turn", "round", "arm", "kind", "case", "throughput_per_s"]),
        **_asked(plan, records),
        **_manifest_fields(manifest, records),
    )


def _check(plan: Plan, records: Sequence[LaunchRecord]) -> None:
    if not records:
        raise RecordError("there is no launch record yet, so nothing to report; run 'ringside compare' on this folder first")
    known = plan.all_arms()
    for record in records:
        if record.arm not in known or record.plan_digest != plan.digest():
            raise RecordError(
                f"the record of launch {record.launch}, arm '{record.arm}', is of another plan (digest {record.plan_digest}, "
                f"this plan's is {plan.digest()}); keep one results folder for each plan"
            )


def measured_minutes(plan: Plan, records: Sequence[LaunchRecord]) -> float:
    """Wall time of the blocks so far: arms of a launch share it, unless they ran one after the other."""
    seconds: dict[object, float] = {}
    for record in records:
        key = (record.launch, record.arm) if plan.measurement.mode == "sequential" else record.launch
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
