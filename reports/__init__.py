"""What we conclude: statistics, tables, pages. Needs no torch; imports ``measurement`` only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from measurement.errors import PlanError, ReportError
from measurement.plans.plan import EVENTS
from measurement.registry import Registry

if TYPE_CHECKING:
    from measurement.records.results import ResultsFolder
    from reports.against import StoredComparison
    from reports.base import Report
    from reports.schema import Comparison
    from reports.what_if import Links

REGISTRY = Registry(
    kind="report",
    group="ringside.reports",
    table={
        "bencher": "reports.formats.for_programs:BencherReport",
        "markdown": "reports.formats.pages:MarkdownReport",
        "csv": "reports.formats.for_programs:CsvReport",
        "json": "reports.formats.for_programs:JsonReport",
        "html": "reports.formats.pages:HtmlReport",
        "junit": "reports.formats.pages:JunitReport",
        "mlflow": "reports.formats.tracker:MlflowReport",
        "openmetrics": "reports.formats.for_programs:OpenmetricsReport",
        "otava": "reports.formats.for_programs:OtavaReport",
        "pull-request": "reports.formats.pages:PullRequestReport",
        "wandb": "reports.formats.tracker:WandbReport",
    },
)


def conclude(
    folder: ResultsFolder,
    *,
    links: Links | None = None,
    at_point: Callable[[ResultsFolder], Comparison] | None = None,
) -> Comparison:
    """The comparison, from the records of a results folder, or from those of its points; writes
    nothing.

    ``links``: to answer "what if" for. ``at_point``: makes the comparison of a point from its
    folder; None: this function.

    Raises:
        RecordError: the folder is missing or damaged, or holds no record.
    """
    from reports.compose_comparison import compare, compare_points
    from reports.conclusions.steps import measured_records, read_steps

    plan = folder.read_plan()
    if plan.points:
        folders = folder.measured_points(plan)
        conclude_point = at_point or partial(conclude, links=links)
        compared = {
            name: conclude_point(folders[name]) if name in folders else None for name in plan.points
        }
        return compare_points(
            plan, compared, comparison_id=folder.root.name, manifest=folder.manifest()
        )
    records = measured_records(folder)
    losses = {
        (record.launch, record.arm): folder.losses(record)
        for record in records
        if record.scripts and record.status == "ok"
    }
    traces = folder.traces()
    return compare(
        plan,
        records,
        read_steps(folder, records),
        host_use=folder.host_use(records),
        manifest=folder.manifest(),
        losses=losses,
        traces=traces.arms if traces else (),
        links=links,
    )


def write_reports(folder: ResultsFolder, *, earlier: StoredComparison | None = None) -> Comparison:
    """Rebuild from the records the reports that the plan names, and those of
    its points.

    The same records give the same bytes. ``send_reports`` updates trackers afterwards. ``earlier``:
    the result that it is compared with.

    Raises:
        RecordError: the folder is missing or damaged, or holds no record.
        PlanError: a report that the plan names cannot be loaded, or the earlier result was measured
            under unlike conditions.
    """
    from reports.against import StoredComparison, compare_to_earlier

    now = StoredComparison.read(folder) if earlier else None
    if earlier and now:
        earlier.require_like(now)  # before a report is written
    comparison = conclude(folder, at_point=write_reports)
    if earlier and now:
        before = conclude(earlier.folder)
        against = compare_to_earlier(earlier, now, before, comparison)
        comparison = comparison.model_copy(update={"against": against})
    write_files(folder, comparison, folder.read_plan().reports)
    return comparison


def write_files(
    folder: ResultsFolder, summary: Comparison, references: Sequence[str] | None
) -> None:
    """Write reports; ``references`` as ``make_reports`` has them."""
    from measurement.records.results import write_result
    from reports.formats.tracker import Tracker

    for report in make_reports(references):
        if not isinstance(report, Tracker):
            write_result(folder.root / report.file_name, report.render(summary))


def write_runs(comparison: Comparison, folder: ResultsFolder) -> None:
    """Write every customary report of runs that people started themselves (``reports.runs``), those
    of points into folders of their own.
    """
    for point in comparison.points:
        write_files(folder.point(point.name), point, None)
    write_files(folder, comparison, None)


def send_reports(folder: ResultsFolder, summary: Comparison) -> list[str]:
    """Send the result to the trackers that the plan names.

    Returns:
        For each tracker that failed, why, and what to do.
    """
    from measurement.records.results import write_result
    from reports.formats.tracker import Tracker

    failed = []
    for report in make_reports(folder.read_plan().reports):
        if isinstance(report, Tracker):
            try:
                write_result(folder.root / report.file_name, report.render(summary))
            except ReportError as error:
                failed.append(str(error))
    return failed


def make_report(reference: str) -> Report:
    """The report that a name, ``module:Class`` or ``path/to/file.py:Class`` refers to.

    Raises:
        PlanError: unknown, not loadable, or no Report.
    """
    from reports.base import Report

    report_class = REGISTRY.resolve(reference)
    if not issubclass(report_class, Report) or not hasattr(report_class, "file_name"):
        raise PlanError(
            f"report '{reference}' is {report_class.__name__}, which does not derive from"
            " reports.base.Report with a file_name of its own"
        )
    return report_class()


def make_reports(references: Sequence[str] | None) -> list[Report]:
    """The reports to make, each a file of its own. ``json`` is always there: programs read it.

    ``references``: of a plan; None: all that are customary, installed plug-ins included.

    Raises:
        PlanError: one cannot be loaded or lacks what it needs.
    """
    if references is None:
        every = [make_report(name) for name in sorted(REGISTRY.names())]
        return [report for report in every if report.is_customary]
    named = dict.fromkeys(["json", *(name for name in references if name != EVENTS)])
    made = [make_report(reference) for reference in named]
    if lacks := [lack for report in made if (lack := report.lack())]:
        raise PlanError("; ".join(lacks))
    return made
