"""report.md: the answer, the table and the method, for an issue or a pull request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from measurement.errors import in_report
from reports.base import Report
from reports.schema import ArmSummary, Comparison
from reports.scripts.first_screen import first_lines
from reports.study_schema import Study
from reports.tables.case_tables import case_table, outcome_table
from reports.tables.sections import sections
from reports.tables.study_tables import points_table, results_table, study_link_caption, study_link_table
from reports.tables.table import Table
from reports.tables.verdict_table import training_table, verdict_table
from reports.wording.method import method
from reports.wording.study_sentences import bases, study_method

SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#&~$"})


class MarkdownReport(Report):
    """GitHub's Markdown; what came from users and programs is escaped."""

    file_name = "report.md"

    def render(self, comparison: Comparison) -> bytes:
        """The first line is the headline; against an earlier result, what changed."""
        against = comparison.against
        parts = [
            *([f"**{escape(against.headline)}.**", ""] if against else []),
            f"**{escape(comparison.headline)}.**",
            *(f"- {escape(line)}" for line in first_lines(comparison)),
            *(f"- {escape(line)}" for line in comparison.beside_headline),
            *([f"- {escape(comparison.limit)}"] if comparison.limit else []),
            *(f"- Note: {escape(line)}" for line in comparison.warnings),
            *_answer(comparison),
            *(line for section in sections(comparison) for line in _section(section.title, section.table, section.caption)),
            *_errors(comparison.arms),
            *_fairness(comparison),
            "\n## How it was measured\n",
            *(f"- {escape(line)}" for line in method(comparison)),
            "",
        ]
        return "\n".join(parts).encode()

    def render_study(self, study: Study) -> bytes:
        links = study_link_table(study)
        parts = [
            f"**{escape(study.headline)}.**\n",
            *(f"- {escape(line)}" for line in study.findings),
            *(f"- Note: {escape(line)}" for line in study.warnings),
            "\n## Results\n",
            *markdown_table(results_table(study)),
            "",
            *(f"- {escape(line)}" for line in bases(study)),
            "\n## Points\n",
            *markdown_table(points_table(study)),
            *(_section("Bytes per link", links, study_link_caption(study)) if links.rows else []),
            "\n## How to read it\n",
            *(f"- {escape(line)}" for line in study_method(study.points)),
            "",
        ]
        return "\n".join(parts).encode()


def escape(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    flat = " ".join(in_report(str(text)).split()).translate(SPECIAL)
    return flat.replace("://", ":\\/\\/")


def markdown_table(table: Table) -> list[str]:
    """The lines of a table, everything in it escaped."""
    rows = [[escape(entry.text) for entry in line] for line in table.lines()]
    return _lines([escape(column.title) for column in table.columns], rows)


def _lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose texts are escaped already."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _answer(comparison: Comparison) -> list[str]:
    """The tables of the arms; of a micro-benchmark also one for each operation, sizes down, arms across."""
    if comparison.cases:
        lines = ["\n## Arms\n", *markdown_table(outcome_table(comparison))]
        for operation, table in case_table(comparison).groups().items():
            lines += [f"\n## {escape(operation)}\n", *markdown_table(table)]
        return lines
    convergence = ["\n## Convergence\n", *markdown_table(training_table(comparison.training))] if comparison.training else []
    return [*convergence, "\n## Arms\n", *markdown_table(verdict_table(comparison).without("exposed", "pairs", "note"))]


def _section(title: str, table: Table, caption: str = "") -> list[str]:
    """A heading where there is one, the caption, the table."""
    return [f"\n## {title}\n" if title else "", *([f"{escape(caption)}.\n"] if caption else []), *markdown_table(table)]


def _errors(arms: Sequence[ArmSummary]) -> list[str]:
    lines = []
    for arm in arms:
        for error in arm.errors:
            ranks = f", rank {', '.join(map(str, error.ranks))}" if error.ranks else ""
            lines.append(f"- {escape(arm.name)}, launch {error.launch}{ranks}: {error.status}: {escape(error.message)}")
    return ["\n## What failed\n", *lines] if lines else []


def _fairness(comparison: Comparison) -> list[str]:
    """What the plan did not ask for in full, of the rest the fields."""
    unasked = [entry for entry in comparison.fairness if not entry.get("asked")]
    asked = [escape(entry.get("field", "")) for entry in comparison.fairness if entry.get("asked")]
    rows = [[escape(entry.get("field", "")), escape(_values(entry.get("values")))] for entry in unasked]
    table = ["", *_lines(["field, not asked for", "values"], rows)] if rows else []
    rest = [f"\nAsked for, or come with the arm's library and launcher: {', '.join(asked)}"] if asked else []
    return ["\n## What differs between the arms", *table, *rest] if table or rest else []


def _values(values: Any) -> str:
    if not isinstance(values, dict):
        return json.dumps(values)
    return "; ".join(f"{arm}: {value if isinstance(value, str) else json.dumps(value)}" for arm, value in values.items())
