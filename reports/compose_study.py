"""From the records of a study's points to a ``Study``, and to its reports: numbers of ``conclusions``, sentences of ``wording``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from measurement.errors import RecordError
from measurement.plans.plan import Plan
from measurement.plans.plan_file import plan_at, world_size_at
from measurement.records.record import Manifest
from measurement.records.results import ResultsFolder
from reports import conclude, write_files, write_reports
from reports.conclusions.study_conclusions import WITHOUT_WRAPPER, scaling_base, with_scaling
from reports.schema import ArmError, ArmSummary, Comparison, Status, Study, StudyPoint
from reports.wording.headlines import left_clause
from reports.wording.study_sentences import base_words, findings, headline, warnings


def write_study(folder: ResultsFolder, *, points: bool = False) -> Study:
    """Rebuild a study's reports from the records of its points.

    ``points``: those of its points, too.

    Raises:
        RecordError: a folder is damaged, or no study's.
    """
    study = conclude_study(folder, points=points)
    write_files(folder, study, folder.read_plan().reports)
    return study


def conclude_study(folder: ResultsFolder, *, points: bool = False) -> Study:
    """A study from its records. Writes only the reports of its points, and these only with ``points``; see ``write_study``."""
    plan = folder.read_plan()
    if not plan.points:
        raise RecordError(f"'{folder.root}' holds no study: its plan has no points")
    compared = {name: _comparison(folder.point(name), write=points) for name in plan.points}
    return study_of(plan, compared, comparison_id=folder.root.name, manifest=folder.manifest())


def study_of(
    plan: Plan, compared: Mapping[str, Comparison | None], *, comparison_id: str, manifest: Manifest | None = None
) -> Study:
    """A study from the comparisons at its points.

    ``compared``: by point; None where nothing was measured. ``manifest``: None where no driver ran it.
    """
    found = [_point(plan, name, compared[name], manifest) for name in plan.points]
    for point in found:
        point.arms = [_scaled(found, point, arm) for arm in point.arms]
    some = next((comparison for comparison in compared.values() if comparison), None)
    left = [name for comparison in compared.values() if comparison for name in comparison.left_in_shell]
    return Study(
        comparison_id=comparison_id,
        **{name: getattr(plan, name) for name in ("name", "baseline", "workload", "scaling", "link")},
        created_at=manifest.created_at if manifest else (some.created_at if some else ""),
        ringside_version=manifest.ringside_version if manifest else None,
        headline=left_clause(list(dict.fromkeys(left))) + headline(found, plan),
        findings=findings(found, plan),
        warnings=warnings(found, plan),
        sample_unit=some.sample_unit if some else "samples",
        target_accuracy=plan.training.target_accuracy if plan.training else None,
        confidence=plan.measurement.confidence,
        points=found,
    )


def _scaled(points: Sequence[StudyPoint], point: StudyPoint, arm: ArmSummary) -> ArmSummary:
    """The arm with its scaling and the name of what that is relative to; unchanged where there is none."""
    base = scaling_base(points, arm.name) if arm.throughput_per_s else None
    return with_scaling(arm, point, base).model_copy(update={"scaling_baseline": base_words(base)}) if base else arm


def _comparison(folder: ResultsFolder, *, write: bool) -> Comparison | None:
    """The comparison at one point; None where nothing has been measured."""
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
        local_batch_size=asked.local_batch_size,
        global_batch_size=asked.local_batch_size * asked.micro_steps * asked.world_size,
        cause=cause,
        device="cpu" if comparison is None else comparison.device,
        headline=comparison.headline if comparison else None,
        elsewhere=comparison.elsewhere if comparison else [],
        cases=comparison.cases if comparison else [],
        arms=[_arm(plan, name, arm, comparison, cause) for arm in plan.compared_arms()],
        results=[result.model_copy(update={"pair_table": {}}) for result in comparison.results] if comparison else [],
        fastest=comparison.fastest if comparison else [],
    )


def _arm(plan: Plan, point: str, name: str, comparison: Comparison | None, cause: str | None) -> ArmSummary:
    """The arm as the point's comparison has it, or why there is none."""
    if comparison and any(arm.name == name for arm in comparison.arms):
        time = comparison.training.arm(name).time_to_train_s if comparison.training else None
        return comparison.arm(name).model_copy(update={"time_to_train_s": time})
    asked = plan.compared_arms()[name]
    ranks = world_size_at(plan, point)
    status: Status = "failed" if cause else "not measured"
    if comparison is not None or (asked.backend in WITHOUT_WRAPPER and ranks > 1):
        status, cause = "not at this point", None
    return ArmSummary(
        name=name,
        role=plan.role(name),
        status=status,
        **asked.model_dump(include={"backend", "transport", "launcher", "options"}),
        world_size=ranks,
        errors=[ArmError(launch=0, status=status, message=cause)] if cause else [],
    )
