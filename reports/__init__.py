"""What we conclude: statistics, tables, pages. Needs no torch; imports ``measurement`` only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from measurement.errors import RecordError
from measurement.files import write_whole
from measurement.record import Manifest
from measurement.registry import Registry
from measurement.results import ResultsFolder

if TYPE_CHECKING:
    from reports.schema import Comparison

REGISTRY = Registry(
    kind="report",
    group="ringside.reports",
    table={
        "markdown": "reports.markdown:MarkdownReport",
        "csv": "reports.table:CsvReport",
        "curves": "reports.curves:CurvesReport",
        "json": "reports.json_file:JsonReport",
        "html": "reports.html:HtmlReport",
    },
)


def conclude(folder: ResultsFolder) -> Comparison:
    """The comparison that a results folder's records amount to; writes nothing.

    Raises:
        RecordError: the folder is missing or damaged, or holds no record.
    """
    from reports.blocks import read_steps
    from reports.comparison import compare

    plan = folder.read_plan()
    records = folder.records()
    if not records:
        raise RecordError(f"'{folder.root}' holds no launch record yet; run 'ringside compare' with this folder first")
    return compare(plan, records, read_steps(folder, records), manifest=_manifest(folder))


def write_reports(folder: ResultsFolder) -> Comparison:
    """Rebuild every report that has content from the records, each file written whole; the same bytes for the same records.

    Raises:
        RecordError: the folder is missing or damaged, or holds no record.
    """
    comparison = conclude(folder)
    for name in sorted(REGISTRY.names()):
        report = REGISTRY.resolve(name)()
        if not report.has_content(comparison):
            continue
        write_whole(folder.root / report.file_name, report.render(comparison))
    return comparison


def _manifest(folder: ResultsFolder) -> Manifest | None:
    """None where the comparison was cut off before it was written: the figures do not need it."""
    return folder.read_manifest() if folder.manifest_path.is_file() else None
