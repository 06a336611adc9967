"""The tables on the terminal. How an entry looks follows from its kind."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from measurement.errors import printable
from measurement.records.loader_record import LoaderRecord
from reports.conclusions.loaders import LoaderDemand
from reports.schema import Comparison
from reports.script_schema import ConfigurationDifference
from reports.scripts.first_screen import first_lines
from reports.study_schema import Study
from reports.tables.against_table import against_table
from reports.tables.case_tables import case_table, outcome_table
from reports.tables.loader_table import loader_table
from reports.tables.script_tables import differences_table as script_differences_table
from reports.tables.script_tables import phases_table
from reports.tables.study_tables import results_table
from reports.tables.table import Entry, Kind, Row, Table
from reports.tables.terms_table import terms_table
from reports.tables.verdict_table import training_table, verdict_table
from reports.wording.study_sentences import bases

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
MOST_DIFFERENCES = 15
"""Rows of settings that are shown before scripts are timed."""


def comparison_table(comparison: Comparison) -> RichTable | Group:
    """The verdict table, below that of training to the end; of a micro-benchmark, counts of verdicts, then every case.

    Of scripts, what they do differently and whether they train alike comes first.
    """
    if comparison.cases:
        return _cases(comparison)
    speeds = _verdicts(comparison)
    if comparison.are_scripts:
        phases = rich_table(phases_table(comparison).without("counted", "gaps"))
        return Group(*(shown(line) for line in first_lines(comparison)), Text(), speeds, Text(), phases)
    if comparison.training is None:
        return speeds
    return Group(rich_table(training_table(comparison.training)), Text(), speeds)


def against_group(comparison: Comparison) -> Group:
    """What changed since an earlier result: a table, how to measure both states in turn, and what differs between the two."""
    against = comparison.against
    lines = [against.remedy, *against.notes] if against else []
    return Group(rich_table(against_table(comparison)), *map(shown, lines), Text())


def _verdicts(comparison: Comparison) -> RichTable | Group:
    """Below the table: notes that are too long for it, the limit, and what might decide what is open; then each arm's terms."""
    terms = terms_table(comparison)
    table = verdict_table(comparison).without("runs_as", "pairs", *(["exposed"] if terms.rows or comparison.are_scripts else []))
    notes = [(row.entries["arm"].text, row.entries["note"]) for row in table.rows]
    below = [f"{arm}: {note.text}" for arm, note in notes if note.short is not None]
    below += comparison.cross_checks
    below += [comparison.limit] if comparison.limit else []
    below += comparison.remedies if comparison.undecided else []
    verdicts = _with_lines(rich_table(table), below)
    return Group(verdicts, Text(), rich_table(terms)) if terms.rows else verdicts


def _cases(comparison: Comparison) -> Group:
    """Latency of each arm but the control; a candidate's with its ratio and verdict."""
    controls = [arm.name for arm in comparison.arms if arm.role == "control"]
    latencies = _by_operation(case_table(comparison).without(*controls))
    reasons = dict.fromkeys(figures.not_offered for arm in comparison.arms for figures in arm.cases if figures.not_offered)
    below = [shown(line) for line in (*comparison.beside_headline, *(f"–: {reason}" for reason in reasons))]
    return Group(rich_table(outcome_table(comparison).without("runs_as")), Text(), latencies, *below)


def _by_operation(table: Table) -> RichTable:
    """Each operation's name above its sizes."""
    first, *arms = table.columns
    made = _frame()
    for title in ("latency", *(column.title for column in arms)):
        made.add_column(shown(title))
    for operation, sizes in table.groups().items():
        made.add_section()
        made.add_row(shown(operation, style="bold"))
        for row in sizes.rows:
            made.add_row(shown(f"  {row.entries[first.name].text}"), *(_text(row.entries[column.name]) for column in arms))
    return made


def study_table(study: Study) -> RichTable:
    """The arms at every point, each point's name once; below, all findings."""
    table = rich_table(results_table(study).without("cause", "interval"), once_per_group="point", wraps=False)
    return _with_lines(table, [*study.findings, *study.warnings, *bases(study)])


def loading_table(record: LoaderRecord, need: LoaderDemand | None = None) -> RichTable:
    """What the loaders alone deliver."""
    ranks = f"{record.world_size} rank{'s' if record.world_size > 1 else ''}"
    made = rich_table(loader_table(record, need))
    made.title, made.title_justify = shown(f"Loaders of {record.workload} alone, {ranks}: {record.sample_unit}/s"), "left"
    return made


def rich_table(table: Table, *, once_per_group: str | None = None, wraps: bool = True) -> RichTable:
    """A table in its shorter words, with a line between groups.

    Args:
        table: to show.
        once_per_group: a column whose entry is shown in the first row of each group only.
        wraps: columns that may be broken over several lines are.
    """
    made = _frame()
    for column in table.columns:
        folds = wraps and column.wraps
        made.add_column(
            shown(column.title),
            justify="right" if column.numeric else "left",
            no_wrap=not folds,
            overflow="fold" if folds else "ellipsis",
        )
    before: Row | None = None
    for row in table.rows:
        continues = before is not None and before.group == row.group
        if before is not None and not continues:
            made.add_section()
        hidden = once_per_group if continues else None
        texts = (Text("") if column.name == hidden else _text(row.entries[column.name]) for column in table.columns)
        made.add_row(*texts, style="bold" if row.is_total else None)
        before = row
    return made


def _frame() -> RichTable:
    return RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)


def _text(entry: Entry) -> Text:
    return shown(entry.narrow, style=STYLES.get(entry.kind, ""))


def shown(text: str, *, style: str = "") -> Text:
    """``Text`` and not ``str``, since names and messages may hold what looks like markup, or what a terminal obeys."""
    return Text(printable(text), style=style)


def _with_lines(table: RichTable, lines: list[str]) -> RichTable:
    """The table with sentences below it."""
    if lines:
        table.caption, table.caption_justify = shown("\n".join(lines), style="none"), "left"
    return table


def differences_table(differences: Sequence[ConfigurationDifference]) -> Group:
    """What scripts do differently, before they are timed: likely mistakes in words, then at most ``MOST_DIFFERENCES`` settings."""
    if not differences:
        return Group(shown("The scripts do nothing differently that the probe sees"))
    told = [one for one in differences if one.severity == "mistake"]
    rest = [one for one in differences if one.severity not in ("mistake", "note")][:MOST_DIFFERENCES]
    lines = [shown(f"{'other work: ' if one.withholds else ''}{one.sentence}", style=STYLES["differs"]) for one in told]
    made: list[RichTable | Text] = [shown("What the scripts do differently:", style="bold"), *lines]
    if rest:
        table = script_differences_table(rest)
        made.append(rich_table(table.without("/sentence"), wraps=True))
    more = len(differences) - len(told) - len(rest)
    return Group(*made, *([shown(f"and {more} more, in the report")] if more else []))
