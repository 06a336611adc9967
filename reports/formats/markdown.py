"""report.md: the answer, the table and the method, for an issue or a pull request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from measurement.errors import in_report
from reports.base import Report
from reports.schema import ArmSummary, Comparison
from reports.study_schema import Study
from reports.tables.case_tables import case_table, outcome_table
from reports.tables.machine_table import machine_caption, machine_table
from reports.tables.rank_tables import link_caption, link_table, rank_caption, rank_table
from reports.tables.study_tables import points_table, results_table, study_link_caption, study_link_table
from reports.tables.table import Table
from reports.tables.terms_table import terms_table, threads_table
from reports.tables.verdict_table import conditions_table, training_table, verdict_table
from reports.wording.formatting import NONE, gibibytes, milliseconds, step_shares
from reports.wording.method import method
from reports.wording.study_sentences import bases, study_method

SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#&~$"})


class MarkdownReport(Report):
    """GitHub's Markdown; what came from users and programs is escaped."""

    file_name = "report.md"

    def render(self, comparison: Comparison) -> bytes:
        """The first line is the headline."""
        parts = [
            f"**{escape(comparison.headline)}.**",
            *(f"- {escape(line)}" for line in comparison.beside_headline),
            *([f"- {escape(comparison.limit)}"] if comparison.limit else []),
            *(f"- Note: {escape(line)}" for line in comparison.warnings),
            *(_cases(comparison) if comparison.cases else _trained(comparison)),
            *_machine(comparison),
            *_errors(comparison.arms),
            *_fairness(comparison),
            "\n## How it was measured\n",
            *(f"- {escape(line)}" for line in method(comparison)),
            "",
        ]
        return "\n".join(parts).encode()

    def render_study(self, study: Study) -> bytes:
        return _study(study)


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


def _trained(comparison: Comparison) -> list[str]:
    """The tables of a workload that is trained."""
    convergence = training_table(comparison.training) if comparison.training else None
    terms, threads = terms_table(comparison), threads_table(comparison)
    ranks, links = rank_table(comparison), link_table(comparison.arms)
    rank_words = rank_caption(comparison.arms, comparison.sample_unit)
    return [
        *(["\n## Convergence\n", *markdown_table(convergence)] if convergence else []),
        "\n## Arms\n",
        *markdown_table(verdict_table(comparison).without("exposed", "pairs", "note")),
        "\n## What each rank ran on, and defaults that differ\n",
        *markdown_table(conditions_table(comparison)),
        "\n## Why\n",
        *_steps(comparison),
        *(["", *markdown_table(terms)] if terms.rows else []),
        *(["", *markdown_table(threads)] if threads.rows else []),
        *(["\n## Ranks and hosts\n", f"{escape(rank_words)}.\n", *markdown_table(ranks)] if ranks.rows else []),
        *(["\n## Bytes per link\n", f"{escape(link_caption(comparison.arms))}.\n", *markdown_table(links)] if links.rows else []),
    ]


def _cases(comparison: Comparison) -> list[str]:
    """The tables of a micro-benchmark: the arms, then one table for each operation, sizes down, arms across."""
    lines = ["\n## Arms\n", *markdown_table(outcome_table(comparison))]
    for operation, table in case_table(comparison).groups().items():
        lines += [f"\n## {escape(operation)}\n", *markdown_table(table)]
    return lines


def _machine(comparison: Comparison) -> list[str]:
    table = machine_table(comparison)
    if not table.rows:
        return []
    return ["\n## The machine beside the ranks\n", f"{escape(machine_caption(comparison.arms))}.\n", *markdown_table(table)]


def _steps(comparison: Comparison) -> list[str]:
    header = ["arm", "step p50 ms", "p5 to p95 ms", "waiting for data, exposed exchange", "peak memory GiB"]
    rows = []
    for arm in comparison.arms:
        steps = arm.step_time_s
        spread = f"{milliseconds(steps['p5'])} to {milliseconds(steps['p95'])}" if steps else NONE
        shares = step_shares(arm.step_shares)
        row = [milliseconds(steps.get("p50")), spread, shares, gibibytes(arm.peak_memory_bytes)]
        rows.append([escape(arm.name), *row])
    return _lines(header, rows)


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


def _study(study: Study) -> bytes:
    """The answer, the tables, the method."""
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
        *_study_links(study),
        "\n## How to read it\n",
        *(f"- {escape(line)}" for line in study_method(study.points)),
        "",
    ]
    return "\n".join(parts).encode()


def _study_links(study: Study) -> list[str]:
    table = study_link_table(study)
    return ["\n## Bytes per link\n", f"{escape(study_link_caption(study))}.\n", *markdown_table(table)] if table.rows else []
