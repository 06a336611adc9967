"""report.md: the answer, the table and the method, for an issue or a pull request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from reports.base import Report
from reports.method import method
from reports.quantities import (
    NONE,
    arm_kind,
    exposed,
    gibibytes,
    interval,
    milliseconds,
    percent,
    rate,
    rate_interval,
    ratio,
)
from reports.schema import ArmSummary, Comparison
from reports.terminal import verdict_word

SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#"})


class MarkdownReport(Report):
    """GitHub's Markdown; what came from users and programs is escaped."""

    file_name = "report.md"

    def render(self, comparison: Comparison) -> bytes:
        """The first line is the headline."""
        parts = [
            f"**{escape(comparison.headline)}.**",
            *(f"- {escape(line)}" for line in comparison.findings if line not in comparison.headline),
            *([f"- {escape(comparison.control)}"] if comparison.control not in comparison.headline else []),
            *(f"- Note: {escape(line)}" for line in comparison.warnings),
            "\n## Arms\n",
            *_verdicts(comparison),
            "\n## Why\n",
            *_causes(comparison),
            *_errors(comparison.arms),
            *_fairness(comparison),
            "\n## How it was measured\n",
            *(f"- {escape(line)}" for line in method(comparison)),
            "",
        ]
        return "\n".join(parts).encode()


def escape(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    return " ".join(str(text).split()).translate(SPECIAL)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _verdicts(comparison: Comparison) -> list[str]:
    unit = escape(comparison.sample_unit)
    header = [
        "arm",
        "runs as",
        "status",
        f"{unit}/s",
        "ratio",
        f"{percent(comparison.measurement['confidence'])} interval",
    ]
    rows = []
    for arm in comparison.arms:
        result = comparison.result(arm.name)
        figures = [ratio(result.throughput_ratio), interval(result)] if result else ["1", ""]
        speed = f"{rate(arm.throughput_per_s)} ({rate_interval(arm.throughput_per_s)})" if arm.throughput_per_s else NONE
        rows.append([escape(arm.name), escape(arm_kind(arm)), arm.status, speed, *figures, verdict_word(result)])
    return _table([*header, "verdict"], rows)


def _causes(comparison: Comparison) -> list[str]:
    header = ["arm", "step p50 ms", "p5 to p95 ms", "exposed communication ms", "peak memory GiB"]
    rows = []
    for arm in comparison.arms:
        steps = arm.step_time_s
        spread = f"{milliseconds(steps['p5'])} to {milliseconds(steps['p95'])}" if steps else NONE
        row = [milliseconds(steps.get("p50")), spread, exposed(arm.exposed_comm_s), gibibytes(arm.peak_memory_bytes)]
        rows.append([escape(arm.name), *row])
    return _table(header, rows)


def _errors(arms: Sequence[ArmSummary]) -> list[str]:
    lines = []
    for arm in arms:
        for error in arm.errors:
            ranks = f", rank {', '.join(map(str, error.ranks))}" if error.ranks else ""
            lines.append(f"- {escape(arm.name)}, launch {error.launch}{ranks}: {error.status}: {escape(error.message)}")
    return ["\n## What failed\n", *lines] if lines else []


def _fairness(comparison: Comparison) -> list[str]:
    rows = [
        [
            escape(entry.get("field", "")),
            "yes" if entry.get("asked") else "**no**",
            escape(_values(entry.get("values"))),
        ]
        for entry in comparison.fairness
    ]
    if not rows:
        return []
    return ["\n## What differs between the arms\n", *_table(["field", "asked for", "values"], rows)]


def _values(values: Any) -> str:
    if not isinstance(values, dict):
        return json.dumps(values)
    return "; ".join(f"{arm}: {value if isinstance(value, str) else json.dumps(value)}" for arm, value in values.items())
