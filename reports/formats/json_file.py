"""comparison.json: the whole comparison, for programs."""

from __future__ import annotations

from reports.base import Report
from reports.schema import Comparison
from reports.study_schema import Study


class JsonReport(Report):
    """Everything that the other reports show, unrounded; ``reports.schema.Comparison`` reads it."""

    file_name = "comparison.json"

    def render(self, comparison: Comparison) -> bytes:
        return (comparison.model_dump_json(indent=1) + "\n").encode()

    def render_study(self, study: Study) -> bytes:
        return (study.model_dump_json(indent=1) + "\n").encode()
