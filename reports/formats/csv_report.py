"""report.csv: one flat row per arm with its ratio, units in the column names; of a micro-benchmark, per arm and case."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from reports.base import Report
from reports.schema import Comparison, Study
from reports.tables.figures import ARM, CASE, EQUALITY, IDENTITY, OUTCOME, RATIO, TRAINING, Figure, arm_rows, columns


class CsvReport(Report):
    """For spreadsheets and data frames; an empty field means that there is no such figure."""

    file_name = "report.csv"

    def render(self, summary: Comparison | Study) -> bytes:
        points = summary.places.values()
        figures = [Figure("point", "place")] if isinstance(summary, Study) else []
        figures += [*IDENTITY, *RATIO, *(CASE if any(point.cases for point in points) else ARM)]
        figures += TRAINING if any(point.training for point in points) else ()
        figures += EQUALITY if any(point.equality for point in points) else ()
        rows = [columns([*figures, *OUTCOME], row, unit=summary.sample_unit) for row in arm_rows(summary, by_case=True)]
        return csv_bytes(rows[0], rows)


def csv_bytes(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    """UTF-8 CSV with a header row; a missing value is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


class JsonReport(Report):
    """Everything that the other reports show, unrounded; ``reports.schema.Comparison`` reads it."""

    file_name = "comparison.json"

    def render(self, summary: Comparison | Study) -> bytes:
        return (summary.model_dump_json(indent=1) + "\n").encode()
