"""comparison.json: the whole comparison, for programs."""

from __future__ import annotations

from reports.base import Report
from reports.schema import Comparison


class JsonReport(Report):
    """Everything the other reports show, unrounded."""

    file_name = "comparison.json"

    def render(self, comparison: Comparison) -> bytes:
        """UTF-8 JSON, validated by ``reports.comparison.Comparison``."""
        return (comparison.model_dump_json(indent=1) + "\n").encode()
