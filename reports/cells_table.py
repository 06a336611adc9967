"""The tables of a micro-benchmark on the terminal: the arms with their tallies, then sizes as rows and arms as columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from measurement.record import Case
from reports.cells import NO_TIMING, NOT_OFFERED, VERDICTS, tally
from reports.cells_chart import size_text
from reports.quantities import duration, ratio
from reports.schema import ArmSummary, Comparison
from reports.wording import control_failed

STYLES = {"faster": "green", "slower": "red", "undecided": "yellow"}


def cells_tables(comparison: Comparison) -> Group:
    """Both tables, then in sentences what has no place in them."""
    reasons = {cell.not_offered: None for arm in comparison.arms for cell in arm.cells if cell.not_offered}
    lines = [*comparison.findings[1:], comparison.control, *(f"–: {reason}" for reason in reasons)]
    below = [Text(line) for line in lines if line not in comparison.headline]
    return Group(_arms(comparison), Text(), _cells(comparison), *below)


def _arms(comparison: Comparison) -> Table:
    table = _table("arm", "status")
    for title in (*VERDICTS, NOT_OFFERED, NO_TIMING):
        table.add_column(Text(title), justify="right")
    for arm in comparison.arms:
        counts = tally(arm, comparison.results)
        figures = [str(counts[name] or "") for name in (*VERDICTS, NOT_OFFERED, NO_TIMING)]
        table.add_row(Text(arm.name), Text(arm.status, style="" if arm.status == "ok" else "bold red"), *figures)
    return table


def _cells(comparison: Comparison) -> Table:
    """Latency of each arm but the control; a candidate's with its ratio and verdict."""
    arms = [arm for arm in comparison.arms if arm.role != "control"]
    table = _table("latency", *(arm.name for arm in arms))
    for operation, cases in comparison.operations().items():
        table.add_section()
        table.add_row(Text(operation, style="bold"))
        for case in cases:
            table.add_row(Text(f"  {size_text(case)}"), *(_cell(comparison, arm, case) for arm in arms))
    return table


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for title in titles:
        table.add_column(Text(title))
    return table


def _cell(comparison: Comparison, arm: ArmSummary, case: Case) -> Text:
    return Text(" ".join(cell_words(comparison, arm, case)), style=STYLES.get(cell_verdict(comparison, arm, case), ""))


def cell_words(comparison: Comparison, arm: ArmSummary, case: Case) -> Sequence[str]:
    """Latency, then ratio and verdict where there are any."""
    result = comparison.result(arm.name, case.name)
    words = [duration(arm.cell(case.name).latency_s)]
    if result and result.throughput_ratio is not None:
        words += [ratio(result.throughput_ratio), cell_verdict(comparison, arm, case)]
    return words


def cell_verdict(comparison: Comparison, arm: ArmSummary, case: Case) -> str:
    """The verdict on a candidate; for the control whether it comes out equal; nothing for the baseline or without timing."""
    result = comparison.result(arm.name, case.name)
    if result is None or result.throughput_ratio is None:
        return ""
    if result.role == "control":
        return "control failed" if control_failed(result) else "control"
    return result.verdict
