"""What we conclude: statistics, tables, pages. Needs no torch; imports ``measurement`` only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from measurement.errors import PlanError, RecordError
from measurement.plans.plan import EVENTS
from measurement.registry import Registry

if TYPE_CHECKING:
    from measurement.records.record import Manifest
    from measurement.records.results import ResultsFolder
    from reports.base import Report
    from reports.regressions.measured import Earlier
    from reports.schema import Comparison

REGISTRY = Registry(
    kind="report",
    group="ringside.reports",
    table={
        "markdown": "reports.formats.markdown:MarkdownReport",
        "csv": "reports.formats.csv_report:CsvReport",
        "curves": "reports.formats.csv_report:CurvesReport",
        "json": "reports.formats.csv_report:JsonReport",
        "html": "reports.formats.html:HtmlReport",
        "junit": "reports.formats.junit:JunitReport",
        "mlflow": "reports.formats.mlflow_report:MlflowReport",
        "openmetrics": "reports.formats.openmetrics:OpenmetricsReport",
        "pull-request": "reports.formats.pull_request:PullRequestReport",
        "wandb": "reports.formats.wandb_report:WandbReport",
    },
)


def conclude(folder: ResultsFolder) -> Comparison:
    """The comparison, from the records of a results folder; writes nothing.

    Raises:
        RecordError: the folder is missing or damaged, or holds no record.
    """
    from reports.compose_comparison import compare
    from reports.conclusions.steps import read_steps

    plan = folder.read_plan()
    records = folder.records()
    if not records:
        raise RecordError(f"'{folder.root}' holds no launch record yet; run 'ringside compare' with this folder first")
    steps, host_use = read_steps(folder, records), folder.host_use(records)
    losses = {(record.launch, record.arm): folder.losses(record) for record in records if record.scripts and record.status == "ok"}
    traces = folder.traces()
    return compare(plan, records, steps, host_use=host_use, manifest=_manifest(folder), losses=losses, traces=traces)


def write_reports(folder: ResultsFolder) -> Comparison:
    """Rebuild from the records the reports that the plan names, if they have content. The same records give the same bytes.

    Raises:
        RecordError: the folder is missing or damaged, or holds no record.
        PlanError: a report that the plan names cannot be loaded.
    """
    comparison = conclude(folder)
    _render(folder, comparison)
    return comparison


def write_against(folder: ResultsFolder, earlier: Earlier, comparison: Comparison | None = None) -> Comparison:
    """Write the reports of a comparison with what changed since an earlier result.

    Args:
        folder: of the comparison.
        earlier: the result that it is held against.
        comparison: what came out of it; None: it is concluded from the records.

    Raises:
        PlanError: they were measured under unlike conditions.
    """
    from reports.regressions.changes import hold_against
    from reports.regressions.measured import Dated, Measured

    measured = Measured.read(folder)
    notes = earlier.require_like(measured)
    then = Dated(measured=earlier.result, found=conclude(earlier.result.folder))
    now = Dated(measured=measured, found=comparison or conclude(folder))
    made = now.found.model_copy(update={"against": hold_against(earlier, then, now, notes=notes)})
    _render(folder, made)
    return made


def _render(folder: ResultsFolder, comparison: Comparison) -> None:
    from measurement.records.results import write_result

    for report in make_reports(folder.read_plan().reports):
        if report.has_content(comparison):
            write_result(folder.root / report.file_name, report.render(comparison))


def make_report(reference: str) -> Report:
    """The report that a name, ``module:Class`` or ``path/to/file.py:Class`` refers to.

    Raises:
        PlanError: unknown, not loadable, or no Report.
    """
    from reports.base import Report

    found = REGISTRY.resolve(reference)
    if not issubclass(found, Report) or not isinstance(getattr(found, "file_name", None), str):
        raise PlanError(
            f"report '{reference}' is {found.__name__}, which does not derive from reports.base.Report with a file_name of its own"
        )
    return found()


def make_reports(references: Sequence[str] | None) -> list[Report]:
    """The reports to write, each to a file of its own, those last that are sent. ``json`` is always there: programs read it.

    Args:
        references: of a plan; None: all that are customary, installed plug-ins included.

    Raises:
        PlanError: one cannot be loaded or lacks what it needs, or two write the same file.
    """
    if references is None:
        return [report for name in sorted(REGISTRY.names()) if (report := make_report(name)).is_customary]
    by_file: dict[str, str] = {}
    made = []
    for reference in dict.fromkeys(["json", *(name for name in references if name != EVENTS)]):
        report = make_report(reference)
        other = by_file.setdefault(report.file_name, reference)
        if other != reference:
            raise PlanError(f"reports '{other}' and '{reference}' both write {report.file_name}; leave one of them out")
        if lack := report.lack():
            raise PlanError(lack)
        made.append(report)
    return sorted(made, key=lambda report: report.is_sent)


def _manifest(folder: ResultsFolder) -> Manifest | None:
    """None where the comparison was cut off before it was written: the figures do not need it."""
    return folder.read_manifest() if folder.manifest_path.is_file() else None
