"""The first screen on the terminal, and tables. How an entry looks follows from its kind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from measurement.conditions.differences import Difference
from measurement.errors import printable
from reports.schema import Comparison
from reports.scripts.porting_mistakes import PortingMistake
from reports.tables import Entry, Kind, Table
from reports.tables.arm_tables import against_table, case_table
from reports.tables.arm_tables import differences_table as script_differences_table
from reports.wording.causes import PHASE_NAMES
from reports.wording.first_screen import MAX_LINES, Bar, FirstScreen, first_screen

STYLES: dict[Kind, str] = {
    "faster": "bold green",
    "slower": "bold red",
    "equivalent": "bold",
    "undecided": "yellow",
    "same": "bold green",
    "differs": "bold red",
    "failed": "red",
    "wrong": "bold red",
    "timeout": "red",
    "not measured": "dim",
    "baseline": "dim",
    "control": "dim",
    "control failed": "bold red",
    "no timing": "dim",
}
"""Kinds that are not named look as usual."""
LEGEND = ", ".join(f"{words.split()[-1][0]} {words}" for words in PHASE_NAMES.values())
BAR_WIDTH = 40
"""Letters of the slowest rank's bar."""
MAX_DIFFERENCES = 15
"""Rows of settings that are shown before scripts are timed."""


def against_group(comparison: Comparison) -> Group:
    """What changed since an earlier result: a table, how to measure both states in turn, and what
    differs between the two.
    """
    against = comparison.against
    lines = [against.remedy, *against.notes] if against else []
    return Group(rich_table(against_table(comparison)), *map(shown, lines), Text())


def comparison_lines(comparison: Comparison) -> Group:
    """The first screen; how the arms scale, where nothing is compared; latency in every case,
    without the control.
    """
    screen_data = first_screen(comparison)
    scales = comparison.findings if comparison.points and not screen_data.candidates else []
    screen = Group(*screen_lines(screen_data).renderables, *(shown(f"{line}.") for line in scales))
    if not comparison.cases:
        return screen
    reasons = dict.fromkeys(
        figures.not_offered
        for arm in comparison.arms
        for figures in arm.cases
        if figures.not_offered
    )
    first = "loaders" if comparison.are_loaders else "latency"
    latencies = _by_operation(case_table(comparison, control=False), first)
    return Group(screen, Text(), latencies, *(shown(f"–: {reason}") for reason in reasons))


def screen_lines(screen: FirstScreen) -> Group:
    """Headline, what was compared, a row for each candidate, the marks, and what to do next: 14
    lines for three arms.
    """
    rows = RichTable.grid(padding=(0, 2, 0, 0))
    has_points = any(candidate.point for candidate in screen.candidates)
    for column in range(6 if has_points else 5):
        rows.add_column(no_wrap=column > 0, overflow="fold")
    rows.columns[-1].no_wrap = False
    for candidate in screen.candidates[:MAX_LINES]:
        kind = STYLES.get(candidate.verdict, "yellow")  # type: ignore[call-overload]
        rows.add_row(
            shown(candidate.arm),
            *([shown(candidate.point)] if has_points else []),
            shown(candidate.verdict, style=kind),
            *map(shown, (candidate.percent, candidate.interval, candidate.cause)),
        )
    more = len(screen.candidates) - MAX_LINES
    marks = Text(" · ").join(
        Text.assemble(f"{mark.name}: ", (printable(mark.word), "green" if mark.ok else "yellow"))
        for mark in screen.marks
    )
    below = [shown(f"Next: {screen.next_step}.", style="bold")] if screen.next_step else []
    return Group(
        shown(f"{screen.headline}.", style="bold"),
        shown(screen.compared, style="dim"),
        *(shown(f"{line}.") for line in screen.notes),
        *map(_bar, screen.bars),
        *(shown(f"{'':{len(bar.label)}}  {LEGEND}", style="dim") for bar in screen.bars[:1]),
        rows,
        *([shown(f"and {more} more, in the report")] if more > 0 else []),
        marks,
        *below,
    )


def _bar(bar: Bar) -> Text:
    """A rank's step, a letter for each fortieth of the slowest rank's: the first of the phase's
    name.
    """
    letters = "".join(
        PHASE_NAMES[phase].split()[-1][0] * round(BAR_WIDTH * part) for phase, part in bar.parts
    )
    return shown(f"{bar.label}  {letters:{BAR_WIDTH}}  {bar.text.partition(':')[0]}")


def _by_operation(table: Table, title: str) -> RichTable:
    """Each operation's name above its sizes."""
    _, *arms = table.columns
    made = _frame()
    for name in (title, *(column.title for column in arms)):
        made.add_column(shown(name))
    for operation, sizes in table.groups().items():
        made.add_section()
        made.add_row(shown(operation, style="bold"))
        for row in sizes.rows:
            size, *entries = row.entries
            made.add_row(shown(f"  {size.text}"), *map(_text, entries))
    return made


def rich_table(table: Table) -> RichTable:
    """A table in its shorter words, with a line between groups; the first column names them."""
    made = _frame()
    for column in table.columns:
        made.add_column(
            shown(column.title),
            justify="right" if column.numeric else "left",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
        )
    for group, rows in groupby(table.rows, key=lambda row: row.group):
        if made.row_count:
            made.add_section()
        for number, row in enumerate(rows):
            first, *entries = row.entries
            is_repeated = group and number  # a group's name stands in its first row alone
            made.add_row(Text("") if is_repeated else _text(first), *map(_text, entries))
    return made


def _frame() -> RichTable:
    return RichTable(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True
    )


def _text(entry: Entry) -> Text:
    return shown(entry.narrow, style=STYLES.get(entry.kind, ""))


def shown(text: str, *, style: str = "") -> Text:
    """``Text`` and not ``str``, since names and messages may hold what looks like markup, or what a
    terminal obeys.
    """
    return Text(printable(text), style=style)


def differences_table(differences: Sequence[Difference]) -> Group:
    """What scripts do differently, before they are timed: what a sentence explains, then at most
    ``MAX_DIFFERENCES`` settings.
    """
    if not differences:
        return Group(shown("The scripts do nothing differently that the agent sees"))
    mistakes = [row for row in differences if isinstance(row, PortingMistake)]
    rest = [row for row in differences if not (row.is_note or isinstance(row, PortingMistake))]
    rest = (rest if mistakes or rest else list(differences))[:MAX_DIFFERENCES]
    lines = [
        shown(
            f"{'other work: ' if mistake.withholds else ''}{mistake.sentence}",
            style=STYLES["differs"],
        )
        for mistake in mistakes
    ]
    made: list[RichTable | Text] = [shown("What the scripts do differently:", style="bold"), *lines]
    if rest:
        made.append(rich_table(script_differences_table({"": rest}, in_words=False)))
    more = len(differences) - len(mistakes) - len(rest)
    return Group(*made, *([shown(f"and {more} more, in the report")] if more else []))
