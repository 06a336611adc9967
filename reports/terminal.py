"""The verdict table on the terminal: one row per arm."""

from __future__ import annotations

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from reports.cells_table import cells_tables
from reports.quantities import interval, milliseconds, percent, rate, ratio
from reports.schema import ArmSummary, Comparison, RatioSummary
from reports.training_table import training_table
from reports.wording import control_failed, first_line, minutes_words

STYLES = {
    "faster": "bold green",
    "slower": "bold red",
    "equivalent": "bold",
    "undecided": "yellow",
    "ok": "",
    "failed": "red",
    "wrong": "bold red",
    "timeout": "red",
    "not measured": "dim",
}

SHORT = 16
SEE_BELOW = "see below"


def verdict_table(comparison: Comparison) -> Table | Group:
    """Arm, status, throughput, ratio, interval, verdict, exposed communication and a short note; longer ones below.

    Of a micro-benchmark, the tables of ``reports.cells_table``; of training to the end, that of ``reports.training_table`` before.
    """
    if comparison.cases:
        return cells_tables(comparison)
    speeds = _speed_table(comparison)
    return Group(training_table(comparison.training), Text(), speeds) if comparison.training else speeds


def _speed_table(comparison: Comparison) -> Table:
    """Throughput, ratio and verdict of each arm."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for title, numeric in (
        ("arm", False),
        ("status", False),
        (f"{comparison.sample_unit}/s", True),
        ("ratio", True),
        (f"{percent(comparison.measurement['confidence'])} interval", False),
        ("verdict", False),
        ("exposed ms", True),
    ):
        table.add_column(Text(title), justify="right" if numeric else "left", no_wrap=True)
    table.add_column("note", overflow="fold")
    for arm in comparison.arms:
        table.add_row(*_cells(arm, comparison.result(arm.name)))
    below = [f"{arm.name}: {note(arm, comparison.result(arm.name))}" for arm in comparison.arms if _is_long(arm, comparison)]
    if comparison.limit:
        below.append(comparison.limit)
    if below:
        table.caption, table.caption_justify = Text("\n".join(below), style="none"), "left"
    return table


def _is_long(arm: ArmSummary, comparison: Comparison) -> bool:
    result = comparison.result(arm.name)
    return short_note(arm, result) == SEE_BELOW


def _cells(arm: ArmSummary, result: RatioSummary | None) -> list[Text]:
    """Plain ``Text``, since names and messages may hold what looks like markup."""
    verdict = verdict_word(result)
    return [
        Text(arm.name),
        Text(arm.status, style=STYLES[arm.status]),
        Text(rate(arm.throughput_per_s)),
        Text(ratio(result.throughput_ratio) if result else "1"),
        Text(interval(result).replace(" to ", "–") if result else ""),
        Text(verdict, style=STYLES.get(verdict, "dim")),
        Text(milliseconds(arm.exposed_comm_s.value if arm.exposed_comm_s else None)),
        Text(short_note(arm, result)),
    ]


def verdict_word(result: RatioSummary | None) -> str:
    """The verdict; for the control whether it comes out equal; for the baseline its role; nothing without timing."""
    if result is None:
        return "baseline"
    if result.throughput_ratio is None:
        return "no timing"
    if result.role == "control":
        return "control failed" if control_failed(result) else "control"
    return result.verdict


def short_note(arm: ArmSummary, result: RatioSummary | None) -> str:
    """``note`` where it is short, else where to find it."""
    text = note(arm, result)
    return text if len(text) <= SHORT else SEE_BELOW


def note(arm: ArmSummary, result: RatioSummary | None) -> str:
    """What went wrong, else how much longer to measure, else what weakens the figure."""
    if arm.errors:
        return first_line(arm.errors[0].message)
    if result and result.role == "candidate" and result.more_minutes is not None:
        return f"{minutes_words(result.more_minutes)} more"
    if result and result.note:
        return result.note
    return "" if arm.complete else "interrupted"
