"""report.md: the answer, the table and the method, for an issue or a pull request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from measurement.record import Case
from reports.base import Report
from reports.cells import NO_TIMING, NOT_OFFERED, VERDICTS, tally
from reports.cells_chart import size_text
from reports.cells_table import cell_verdict
from reports.links import LINK_HEADER, link_caption, link_rows
from reports.method import method
from reports.quantities import (
    NONE,
    arm_kind,
    bandwidth,
    duration,
    exposed,
    gibibytes,
    interval,
    milliseconds,
    percent,
    rate,
    rate_interval,
    ratio,
    step_shares,
)
from reports.ranks import rank_caption, rank_rows
from reports.schema import ArmSummary, Comparison
from reports.terminal import verdict_word
from reports.training_table import training_header, training_rows

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
            *([f"- {escape(comparison.limit)}"] if comparison.limit else []),
            *(f"- Note: {escape(line)}" for line in comparison.warnings),
            *(_cells(comparison) if comparison.cases else _training(comparison)),
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


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Its lines; what stands in the cells is escaped already."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _training(comparison: Comparison) -> list[str]:
    return [
        *_convergence(comparison),
        "\n## Arms\n",
        *_verdicts(comparison),
        "\n## Why\n",
        *_causes(comparison),
        *_ranks(comparison),
        *_links(comparison),
    ]


def _convergence(comparison: Comparison) -> list[str]:
    if comparison.training is None:
        return []
    header, rows = training_header(comparison.training), training_rows(comparison.training)
    return ["\n## Convergence\n", *table(list(map(escape, header)), [list(map(escape, row)) for row in rows])]


def _ranks(comparison: Comparison) -> list[str]:
    header, rows = rank_rows(comparison)
    if not rows:
        return []
    caption = rank_caption(comparison.arms, comparison.sample_unit)
    return [
        "\n## Ranks and hosts\n",
        f"{escape(caption)}.\n",
        *table(list(map(escape, header)), [list(map(escape, row)) for row in rows]),
    ]


def _links(comparison: Comparison) -> list[str]:
    rows = link_rows(comparison.arms)
    if not rows:
        return []
    caption = link_caption(comparison.arms)
    return ["\n## Bytes per link\n", f"{escape(caption)}.\n", *table(LINK_HEADER, [list(map(escape, row)) for row in rows])]


def _cells(comparison: Comparison) -> list[str]:
    """A table of the arms, then one for each operation of a micro-benchmark: sizes down, arms across."""
    titles = (*VERDICTS, NOT_OFFERED, NO_TIMING)
    counts = {arm.name: tally(arm, comparison.results) for arm in comparison.arms}
    rows = [
        [escape(arm.name), escape(arm_kind(arm)), arm.status, *(str(counts[arm.name][title] or "") for title in titles)]
        for arm in comparison.arms
    ]
    lines = ["\n## Arms\n", *table(["arm", "runs as", "status", *titles], rows)]
    for operation, cases in comparison.operations().items():
        header = ["size", *(escape(arm.name) for arm in comparison.arms)]
        sizes = [[size_text(case), *(_cell(comparison, arm, case) for arm in comparison.arms)] for case in cases]
        lines += [f"\n## {escape(operation)}\n", *table(header, sizes)]
    return lines


def _cell(comparison: Comparison, arm: ArmSummary, case: Case) -> str:
    """Latency, bus bandwidth, ratio with its interval and verdict; or why there are none."""
    cell, result = arm.cell(case.name), comparison.result(arm.name, case.name)
    if cell.latency_s is None:
        return escape(cell.not_offered or NONE)
    text = f"{duration(cell.latency_s)}, {bandwidth(cell.busbw_bytes_per_s)}"
    if result is None or result.throughput_ratio is None:
        return text
    bounds = f" ({interval(result)})" if result.ci_low is not None else ""
    return f"{text}; {ratio(result.throughput_ratio)}{bounds} {cell_verdict(comparison, arm, case)}"


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
    return table([*header, "verdict"], rows)


def _causes(comparison: Comparison) -> list[str]:
    header = ["arm", "step p50 ms", "p5 to p95 ms", "exposed communication ms", "waiting for data, exposed", "peak memory GiB"]
    rows = []
    for arm in comparison.arms:
        steps = arm.step_time_s
        spread = f"{milliseconds(steps['p5'])} to {milliseconds(steps['p95'])}" if steps else NONE
        shares = step_shares(arm.step_shares)
        row = [milliseconds(steps.get("p50")), spread, exposed(arm.exposed_comm_s), shares, gibibytes(arm.peak_memory_bytes)]
        rows.append([escape(arm.name), *row])
    return table(header, rows)


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
    return ["\n## What differs between the arms\n", *table(["field", "asked for", "values"], rows)]


def _values(values: Any) -> str:
    if not isinstance(values, dict):
        return json.dumps(values)
    return "; ".join(f"{arm}: {value if isinstance(value, str) else json.dumps(value)}" for arm, value in values.items())
