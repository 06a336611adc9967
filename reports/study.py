"""What is concluded from the points of a study, and its reports.

Speed-up: an arm's throughput over that of its baseline. Scaling efficiency: speed-up over how many times the ranks; with
throughput in samples per second that is the same in weak and in strong scaling. The baseline is the process without wrapper where
the plan has one and it was measured, else the arm itself on one rank, else the arm itself at the first point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from measurement.errors import RecordError
from measurement.files import write_whole
from measurement.plan import Plan
from measurement.points import plan_at, world_size_at
from measurement.record import Manifest
from measurement.results import ResultsFolder
from reports import conclude, write_reports
from reports.schema import ArmError, ArmSummary, Comparison, Estimate, Status
from reports.study_schema import Study, StudyPoint
from reports.study_wording import findings, headline, warnings

Base = tuple[StudyPoint, ArmSummary, str]
"""What an arm's scaling is relative to: where, which arm, and what it is called."""
ALONE = ("single", "dp")
"""Backends of a single process, without wrapper; their own scaling is none."""


def write_study(folder: ResultsFolder, *, points: bool = False) -> Study:
    """Rebuild a study's reports from the records of its points.

    Args:
        folder: of the study.
        points: rebuild those of the points too.

    Raises:
        RecordError: a folder is damaged, or no study's.
    """
    from reports.study_page import study_page
    from reports.study_text import study_csv, study_json, study_markdown

    study = conclude_study(folder, points=points)
    for name, render in (
        ("comparison.json", study_json),
        ("report.md", study_markdown),
        ("report.csv", study_csv),
        ("report.html", study_page),
    ):
        write_whole(folder.root / name, render(study))
    return study


def conclude_study(folder: ResultsFolder, *, points: bool = False) -> Study:
    """What a study's records amount to; see ``write_study``."""
    plan = folder.read_plan()
    if not plan.points:
        raise RecordError(f"'{folder.root}' holds no study: its plan has no points")
    manifest = folder.read_manifest() if folder.manifest_path.is_file() else None
    compared = {name: _comparison(folder.point(name), write=points) for name in plan.points}
    found = [_point(plan, name, compared[name], manifest) for name in plan.points]
    for point in found:
        point.arms = [with_scaling(found, point, arm) for arm in point.arms]
    some = next((comparison for comparison in compared.values() if comparison), None)
    return Study(
        comparison_id=folder.root.name,
        name=plan.name,
        created_at=manifest.created_at if manifest else (some.created_at if some else ""),
        ringside_version=manifest.ringside_version if manifest else None,
        headline=headline(found, plan),
        findings=findings(found, plan),
        warnings=warnings(found),
        baseline=plan.baseline,
        workload=plan.workload,
        sample_unit=some.sample_unit if some else "samples",
        scaling=plan.scaling,
        confidence=plan.measurement.confidence,
        points=found,
    )


def _comparison(folder: ResultsFolder, *, write: bool) -> Comparison | None:
    """None where nothing has been measured."""
    if not folder.plan_path.is_file() or not folder.records():
        return None
    return write_reports(folder) if write else conclude(folder)


def _point(plan: Plan, name: str, comparison: Comparison | None, manifest: Manifest | None) -> StudyPoint:
    asked = plan_at(plan, name)
    cause = manifest.failed_points.get(name) if manifest else None
    return StudyPoint(
        name=name,
        world_size=asked.world_size,
        hosts=asked.hosts,
        link_rate=asked.link_rate,
        local_batch_size=asked.local_batch_size,
        global_batch_size=asked.local_batch_size * asked.micro_steps * asked.world_size,
        cause=cause,
        headline=comparison.headline if comparison else None,
        arms=[_arm(plan, name, arm, comparison, cause) for arm in plan.all_arms()],
        results=[result.model_copy(update={"pair_table": {}}) for result in comparison.results] if comparison else [],
    )


def _arm(plan: Plan, point: str, name: str, comparison: Comparison | None, cause: str | None) -> ArmSummary:
    """The arm as the point's comparison has it, without what only its own charts need; or why there is none."""
    if comparison and any(arm.name == name for arm in comparison.arms):
        return comparison.arm(name).model_copy(update={"step_time_quantiles_s": []})
    asked = plan.all_arms()[name]
    ranks = world_size_at(plan, point)
    status: Status = "failed" if cause else "not measured"
    if comparison is not None or (asked.backend in ALONE and ranks > 1):
        status, cause = "not at this point", None
    return ArmSummary(
        name=name,
        role=plan.role(name),
        status=status,
        backend=asked.backend,
        transport=asked.transport,
        launcher=asked.launcher,
        options=asked.options,
        world_size=ranks,
        errors=[ArmError(launch=0, status=status, message=cause)] if cause else [],
    )


def with_scaling(points: Sequence[StudyPoint], point: StudyPoint, arm: ArmSummary) -> ArmSummary:
    """The arm with its speed-up and efficiency, where both it and its baseline were measured and ranks differ."""
    if len({point.world_size for point in points}) == 1:
        return arm
    base = scaling_base(points, arm.name)
    if base is None or arm.throughput_per_s is None:
        return arm
    at, reference, called = base
    assert reference.throughput_per_s is not None
    is_base = at is point and reference.name == arm.name
    speed_up = Estimate(value=1.0) if is_base else quotient(arm.throughput_per_s, reference.throughput_per_s)
    efficiency = speed_up.value * at.world_size / point.world_size
    return arm.model_copy(update={"speed_up": speed_up, "scaling_efficiency": efficiency, "scaling_baseline": called})


def scaling_base(points: Sequence[StudyPoint], name: str) -> Base | None:
    """What an arm's scaling is relative to; None where the arm was not measured there."""
    measured = [(point, arm) for point in points for arm in point.arms if arm.throughput_per_s]
    for point, arm in measured:
        if point.world_size == 1 and arm.backend in ALONE:
            return point, arm, f"{arm.name} at {point.name} (single process without wrapper)"
    for point, arm in measured:
        if point.world_size == 1 and arm.name == name:
            return point, arm, f"{name} at {point.name} (one rank with wrapper)"
    first = points[0]
    if first.arm(name).throughput_per_s:
        return first, first.arm(name), f"{name} at {first.name} (the first point)"
    return None


def quotient(one: Estimate, other: Estimate) -> Estimate:
    """Of two independent estimates; errors add as squares of logarithms."""
    value = one.value / other.value
    if None in (one.ci_low, one.ci_high, other.ci_low, other.ci_high):
        return Estimate(value=value)
    down = math.hypot(_log(one.value, one.ci_low), _log(other.ci_high, other.value))
    up = math.hypot(_log(one.ci_high, one.value), _log(other.value, other.ci_low))
    return Estimate(value=value, ci_low=value * math.exp(-down), ci_high=value * math.exp(up))


def _log(high: float | None, low: float | None) -> float:
    assert high is not None and low is not None
    return math.log(high / low)
