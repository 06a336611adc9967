"""From a plan's records to a ``Comparison``: numbers of ``conclusions``, sentences of ``wording``.

The same records and steps give the same comparison. Every report renders it, none computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import pandas as pd

from measurement.conditions.differences import (
    Difference,
    arm_differences,
    by_severity,
    noted_work,
    unlike_work,
)
from measurement.conditions.same_environment import plan_digest
from measurement.environment import describe_variables
from measurement.errors import RecordError
from measurement.plans.plan import Plan
from measurement.plans.plan_file import plan_at, world_size_at
from measurement.records.record import ArmTrace, LaunchRecord, Manifest
from reports.conclusions.machine import inherited_variables, summarise_load
from reports.conclusions.ratios import fastest, summarise_ratios
from reports.conclusions.scaling import WITHOUT_WRAPPER, scaling_base, with_scaling
from reports.conclusions.step_terms import is_limit_shown
from reports.conclusions.steps import THROUGHPUT, Steps, columns, first_ranks
from reports.conclusions.summaries import Evidence, summarise_arm
from reports.conclusions.training_results import summarise_training
from reports.parts_schema import TrainingSummary
from reports.schema import (
    ArmError,
    ArmSummary,
    Comparison,
    RatioSummary,
    Status,
    TracedArm,
)
from reports.scripts.configuration import line_causes, script_differences
from reports.scripts.equality import judge_equality
from reports.scripts.profile import explanations, profile_of
from reports.scripts.script_arms import (
    ITERATIONS,
    sample_unit,
    samples_of_a_step,
    script_notes,
    trained_model,
)
from reports.traces import TracedStep, traced_steps, with_causes, with_named_cause
from reports.what_if import Links, what_if
from reports.wording.causes import limit_sentence, ratio_note, work_note
from reports.wording.comparison_sentences import (
    IN_BATCHES,
    NO_CONTROL,
    fastest_sentence,
    findings,
    scaling_sentences,
    study_warnings,
    training_note,
    training_warnings,
    warnings,
)
from reports.wording.disturbances import (
    control_sentence,
    elsewhere_lines,
    floor_lines,
    load_sentence,
    oversubscription_warning,
)
from reports.wording.headlines import (
    convergence_clauses,
    headline,
    inherited_variables_note,
    study_headline,
)

BLOCK_COLUMNS = ["launch", "turn", "round", "arm", "kind", "case", "throughput_per_s", *THROUGHPUT]


def compare(
    plan: Plan,
    records: Sequence[LaunchRecord],
    steps: Steps,
    *,
    host_use: pd.DataFrame | None = None,
    manifest: Manifest | None = None,
    losses: Mapping[tuple[int, str], pd.DataFrame] | None = None,
    traces: Sequence[ArmTrace] = (),
    links: Links | None = None,
    differences: Sequence[Difference] | None = None,
) -> Comparison:
    """All that the reports show of a comparison.

    Args:
        plan: what was asked.
        records: every launch of every arm so far, at least one, in any order.
        steps: theirs (``reports.conclusions.steps.read_steps``).
        host_use: ``measurement.records.results.ResultsFolder.host_use``; None: not known.
        manifest: None: no driver ran it. Figures do not depend on it.
        losses: ``measurement.records.results.ResultsFolder.losses`` of scripts, by launch and arm.
        traces: of its arms.
        links: to answer "what if" for.
        differences: between runs that people started; None: they are found from the records.

    Raises:
        RecordError: a record is of another plan.
    """
    _require_records_of_plan(plan, records, manifest)
    order = list(plan.roles())
    ordered = sorted(records, key=lambda record: (record.launch, order.index(record.arm)))
    unit = sample_unit(records)
    rows = find_differences(plan, ordered) if differences is None else differences
    unlike = unlike_work(rows, baseline=plan.baseline)
    counted = steps.by_iteration() if unit == ITERATIONS else steps
    evidence = Evidence.gather(
        plan, ordered, counted, host_use=host_use, manifest=manifest, unlike_work=unlike
    )
    traced = {trace.arm: traced_steps(trace) for trace in traces}
    summaries = [summarise_arm(evidence, name) for name in plan.compared_arms()]
    arms = [_with_causes(arm, evidence, traced.get(arm.name, [])) for arm in summaries]
    results = _results(evidence, arms)
    leaders, training = fastest(evidence, results), summarise_training(plan, evidence.records)
    comparison = Comparison(
        **_answer_fields(plan, results, arms, leaders, training),
        **_warning_fields(evidence, ordered, arms, results, rows, training, manifest),
        limit=_limit(arms),
        measured_minutes=evidence.minutes,
        results=results,
        fastest=leaders,
        # which compares steps
        what_if=([] if plan.batches else what_if(evidence, arms, links=links)),
        arms=arms,
        cases=evidence.cases,
        traces=[TracedArm(**trace.model_dump(exclude={"spans"})) for trace in traces],
        differences=list(rows),
        explanations=explanations(evidence, results),
        profile=profile_of(evidence, arms[0]),
        equality=judge_equality(plan, ordered, losses=losses or {}) if plan.are_scripts else None,
        block_table=columns(evidence.blocks, BLOCK_COLUMNS),
        **_asked_fields(plan, evidence.records, unit, manifest),
    )
    return comparison.model_copy(update={"headline": headline(comparison)})


def find_differences(plan: Plan, records: Sequence[LaunchRecord]) -> list[Difference]:
    """In what the arms differ, the most important first: in the launch in which most of them
    reported, the first of several. ``records``: by launch.
    """
    launches = [list(same) for _, same in groupby(records, key=attrgetter("launch"))]
    launch = max(
        launches, key=lambda launch: sum(bool(record.scripts or record.ranks) for record in launch)
    )
    if plan.are_scripts:
        return script_differences(launch, allow=plan.allow)
    compared = [record for record in launch if record.role not in ("control", "floor")]
    return by_severity(
        [*noted_work(records, allow=plan.allow), *arm_differences(compared, allow=plan.allow)]
    )


def _results(evidence: Evidence, arms: Sequence[ArmSummary]) -> list[RatioSummary]:
    """All ratios, each with the cause that has a name and what weakens its verdict."""
    allow = "allow, --allow" if evidence.plan.are_scripts else "allow, in the plan"
    results, by_name = [], {arm.name: arm for arm in arms}
    for result in summarise_ratios(evidence, arms):
        note = ratio_note(result, arms)
        if result.withheld_by == "work":
            note = work_note(evidence.unlike_work[result.candidate], allow=allow)
        results.append(with_named_cause(result, by_name).model_copy(update={"note": note}))
    return results


def _answer_fields(
    plan: Plan,
    results: Sequence[RatioSummary],
    arms: Sequence[ArmSummary],
    leaders: Sequence[str],
    training: TrainingSummary | None,
) -> dict[str, Any]:
    """Fields of ``Comparison``: what came out, in sentences; of a training to the end its figures,
    too.
    """
    lines = [*findings(results, arms, plan), *fastest_sentence(leaders, plan)]
    if plan.batches:
        lines = [f"{IN_BATCHES[plan.batches]}, in samples per second: {line}" for line in lines]
    if training is None:
        return {"findings": lines, "control": control_sentence(results)}
    noted = [arm.model_copy(update={"note": training_note(arm, training)}) for arm in training.arms]
    training = training.model_copy(update={"arms": noted})
    return {
        "findings": ["; ".join(convergence_clauses(training)), *lines],
        "control": NO_CONTROL,
        "training": training,
    }


def _warning_fields(
    evidence: Evidence,
    ordered: Sequence[LaunchRecord],
    arms: Sequence[ArmSummary],
    results: Sequence[RatioSummary],
    differences: Sequence[Difference],
    training: TrainingSummary | None,
    manifest: Manifest | None,
) -> dict[str, Any]:
    """Fields of ``Comparison``: what a reader must know before believing the figures, the most
    general first.
    """
    plan = evidence.plan
    elsewhere = elsewhere_lines(manifest) if manifest else []
    left = inherited_variables(plan, ordered)
    crowded = oversubscription_warning(
        max((record.ranks for record in evidence.records), key=len, default=[])
    )
    lines = [
        *describe_variables(left),
        load_sentence(summarise_load(evidence.block_counters)),
        *elsewhere,
        *floor_lines(ordered),
        crowded,
        *(manifest.notes if manifest else []),
        *(script_notes(ordered, differences) if plan.are_scripts else []),
        *(training_warnings(training) if training else []),
        *warnings(plan, arms, results, manifest.looks if manifest else []),
    ]
    return {
        "warnings": [line for line in lines if line],
        "elsewhere": elsewhere,
        "inherited_variables": list(
            dict.fromkeys(variable.name for variables in left.values() for variable in variables)
        ),
    }


def _with_causes(arm: ArmSummary, evidence: Evidence, steps: Sequence[TracedStep]) -> ArmSummary:
    records = [record for record in evidence.records if record.arm == arm.name]
    if evidence.plan.are_scripts:
        step_s = sum(phase.value for phase in arm.step_phases_s.values())
        causes = line_causes(records, step_s=step_s) if step_s else []
        return arm.model_copy(update={"causes": causes})
    ranks = first_ranks(records)
    size = int(ranks[0].model.get("buffer_bytes", 0)) if ranks else 0
    terms = evidence.terms.by_launch.get(arm.name)
    return with_causes(arm, terms, steps, buffer_bytes=size, confidence=evidence.confidence)


def _limit(arms: Sequence[ArmSummary]) -> str | None:
    return limit_sentence(
        {
            arm.name: arm.step_shares
            for arm in arms
            if arm.competes
            and arm.step_shares
            and is_limit_shown(arm.step_shares, arm.step_terms_s)
        }
    )


def _require_records_of_plan(
    plan: Plan, records: Sequence[LaunchRecord], manifest: Manifest | None
) -> None:
    """A plan of a Ringside that had more keys has another digest now: its manifest has the one that
    its records have.
    """
    roles, digest = plan.roles(), plan_digest(plan)
    digests = {digest, manifest.plan_digest if manifest else digest}
    for record in records:
        if record.arm not in roles or record.plan_digest not in digests:
            raise RecordError(
                f"the record of launch {record.launch}, arm '{record.arm}', is of another plan"
                f" (digest {record.plan_digest}, this plan's is {digest}); keep one results folder"
                " for each plan"
            )


def _asked_fields(
    plan: Plan, records: Sequence[LaunchRecord], unit: str, manifest: Manifest | None
) -> dict[str, Any]:
    """Fields of ``Comparison``: what was asked, where it ran and when."""
    of_baseline = [record for record in records if record.arm == plan.baseline]
    world_size = plan.world_size
    if plan.are_scripts:
        batch = samples = samples_of_a_step(of_baseline)
        world_size = max((len(record.ranks) for record in of_baseline), default=0) or world_size
    else:
        own = (record.local_batch_size for record in of_baseline if record.local_batch_size)
        batch = next(own, plan.local_batch_size)
        samples = batch * plan.micro_steps
    ranks = [rank for record in records for rank in record.ranks]
    hosts = dict.fromkeys(
        host for record in records for host in record.hosts or [rank.host for rank in record.ranks]
    )
    facts = {rank.host: rank.fingerprint for rank in ranks if rank.fingerprint}
    names = {"created_at", "ringside_version", "driver", "seconds"}
    return {
        **_plan_fields(plan),
        "comparison_id": records[0].comparison_id,
        "world_size": world_size,
        "sample_unit": unit,
        "model": trained_model(records),
        "device": next((rank.device for rank in ranks), plan.device),
        "hosts": list(hosts),
        "drawn_hosts": (
            max(len(record.hosts) for record in records) if plan.nodes == "draw" else None
        ),
        "batches": plan.batches,
        "local_batch_size": batch,
        "global_batch_size": samples * world_size,
        "created_at": min(record.started_at for record in records),
        "environment": [{"host": host, **facts[host]} for host in sorted(facts)],
        **(manifest.model_dump(include=names) if manifest else {}),
    }


def _plan_fields(plan: Plan) -> dict[str, Any]:
    """Fields of ``Comparison`` that come from the plan alone."""
    names = {"name", "baseline", "workload", "seed", "link", "world_size", "local_batch_size"}
    return {
        **plan.model_dump(include=names),
        "asked_hosts": plan.hosts,
        "question": plan.asked_arms(),
        "global_batch_size": plan.local_batch_size * plan.micro_steps * plan.world_size,
        "measurement": plan.measurement.model_dump(mode="json"),
    }


def compare_points(
    plan: Plan,
    compared: Mapping[str, Comparison | None],
    *,
    comparison_id: str,
    manifest: Manifest | None = None,
) -> Comparison:
    """What follows from the comparisons at a plan's points together.

    ``compared``: by point; None where nothing was measured. ``manifest``: None where no driver ran
    it.
    """
    causes = manifest.failed_points if manifest else {}
    points = [_point(plan, name, compared[name], causes.get(name)) for name in plan.points]
    bases = {name: scaling_base(points, name) for name in plan.compared_arms()}
    for index, point in enumerate(points):
        scaled = [with_scaling(arm, point, bases[arm.name]) for arm in point.arms]
        points[index] = point.model_copy(update={"arms": scaled})
    largest = max(points, key=lambda point: point.world_size)
    measured = [comparison for comparison in compared.values() if comparison]
    left = list(
        dict.fromkeys(name for comparison in measured for name in comparison.inherited_variables)
    )
    size = ("world_size", "local_batch_size", "global_batch_size")
    some: Manifest | Comparison | None = manifest or next(iter(measured), None)
    return Comparison(
        **_plan_fields(plan) | {name: getattr(largest, name) for name in size},
        comparison_id=comparison_id,
        created_at=some.created_at if some else "",
        ringside_version=manifest.ringside_version if manifest else None,
        scaling=plan.scaling,
        headline=inherited_variables_note(left) + study_headline(points, plan),
        findings=scaling_sentences(points, plan),
        warnings=study_warnings(points, plan),
        inherited_variables=left,
        sample_unit=measured[0].sample_unit if measured else "samples",
        hosts=list(dict.fromkeys(host for comparison in measured for host in comparison.hosts)),
        measured_minutes=sum(comparison.measured_minutes for comparison in measured),
        points=points,
    )


def _point(plan: Plan, name: str, comparison: Comparison | None, cause: str | None) -> Comparison:
    """The comparison at a point with all arms of the plan: each as it was measured, or with the
    reason why it was not.
    """
    measured = {arm.name: arm for arm in comparison.arms} if comparison else {}
    arms = []
    for arm, asked in plan.compared_arms().items():
        ranks = world_size_at(plan, name)
        status: Status = "failed" if cause else "not measured"
        if comparison or (asked.backend in WITHOUT_WRAPPER and ranks > 1):
            status = "not at this point"
        why = cause if status == "failed" else None
        not_compared = ArmSummary(
            name=arm,
            role=plan.role(arm),
            status=status,
            **asked.model_dump(include={"backend", "transport", "launcher", "options"}),
            world_size=ranks,
            errors=[ArmError(launch=0, status=status, message=why)] if why else [],
        )
        arms.append(measured.get(arm, not_compared))
    point = comparison or Comparison(
        comparison_id=name, created_at="", **_plan_fields(plan_at(plan, name))
    )
    return point.model_copy(update={"name": name, "cause": cause, "arms": arms})
