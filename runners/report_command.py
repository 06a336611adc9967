"""``ringside report``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from measurement.errors import PlanError
from measurement.plans.settings import Section
from runners.compare_command import (
    EARLIER,
    EXIT_FAILED,
    CompareOptions,
    exit_by_result,
    read_earlier,
    show,
)
from runners.flags import Flag, FlagValues, command, values_of

if TYPE_CHECKING:
    from measurement.records.results import ResultsFolder
    from reports.schema import Comparison


class ReportOptions(Section):
    """Options of ``ringside report``."""

    folders: tuple[str, ...]
    """A folder of 'ringside compare'; or those of runs that you started, or one above them, with
    names of your choice as in old=RUN new=RUN."""
    baseline: str | None = None
    """For your runs: the reference arm. [that of the first run]"""
    output: Path | None = None
    """For your runs: folder to write. [results/report-TIME]"""
    allow: tuple[str, ...] = ()
    """For your runs, and --against: compare although this differs; may be repeated."""
    by: str | None = None
    """For a comparison: figures for each value of a key of its records, such as host, rank, seed,
    launch or round, in the place of the first screen."""
    figure: str | None = None
    """Print one value of comparison.json in the place of the first screen, such as
    results.horovod.throughput_ratio."""


_option, _earlier = partial(Flag, "Results", ReportOptions), partial(Flag, EARLIER, CompareOptions)
FLAGS: Sequence[Flag] = (
    _option("folders", is_argument=True),
    _option("baseline"),
    _option("output", ("-o", "--output")),
    _option("allow", metavar="FIELD"),
    _option("by", metavar="KEY"),
    _option("figure", ("--json",), metavar="PATH"),
    _earlier(
        "against",
        metavar="OLD",
        help="For a comparison: its results at an earlier date; say what changed since.",
    ),
    _earlier("allow_slower", metavar="PERCENT"),
)


def run_report(flags: FlagValues) -> None:
    """Rebuild reports, or make one; the exit code says what the result is."""
    from measurement.records.results import ResultsFolder
    from reports import write_reports
    from reports.runs import is_separate

    options = ReportOptions(**values_of(flags, ReportOptions))
    against = CompareOptions(**values_of(flags, CompareOptions))
    results = ResultsFolder(Path(options.folders[0]))
    if options.by is not None:
        if len(options.folders) > 1 or {flag.field for flag in flags} > {"folders", "by"}:
            raise PlanError("--by looks into one results folder; leave other folders and flags out")
        show_by_key(results, options.by)
        return
    earlier = read_earlier(against.against, against.allow_slower, allowed=options.allow)
    are_runs = len(options.folders) > 1 or not results.plan_path.is_file() or is_separate(results)
    if are_runs and earlier is None:
        if not report_runs(options):
            raise typer.Exit(EXIT_FAILED)
        return
    for flag, value in (
        ("another folder", options.folders[1:]),
        ("--baseline", options.baseline),
        ("-o", options.output),
        ("--allow", options.allow if earlier is None else ()),
    ):
        if value:
            raise PlanError(
                f"{flag} is for runs that you started yourself; '{results.root}' is a comparison:"
                " leave it out"
            )
    comparison = write_reports(results, earlier=earlier)
    print_answer(comparison, results, options)
    exit_by_result(comparison)


report = command(
    run_report,
    FLAGS,
    text=(
        "Rebuild the reports of a comparison, or make one of runs that you started yourself, such"
        " as python -m runners.hvd."
    ),
)


def report_runs(options: ReportOptions) -> bool:
    """Compare runs that people started themselves; write and show the reports.

    Returns whether every run is ok.
    """
    from measurement.records.results import ResultsFolder, default_folder
    from reports import write_runs
    from reports.runs import conclude_runs, read_runs

    folder = ResultsFolder(options.output or default_folder("report"))
    if folder.plan_path.exists():
        raise PlanError(
            f"'{folder.root}' holds measurements; give another folder for the report with -o"
        )
    runs = read_runs(list(options.folders))
    comparison = conclude_runs(
        runs, name=folder.root.name, baseline=options.baseline, allowed=options.allow
    )
    write_runs(comparison, folder)
    return print_answer(comparison, folder, options)


def show_by_key(folder: ResultsFolder, key: str) -> None:
    """Print the figures of a comparison for each value of a key; writes nothing."""
    from reports.by_key import table_by_key
    from reports.formats import new_console
    from reports.formats.terminal import rich_table, shown

    console, table = new_console(), table_by_key(folder, key)
    console.print(rich_table(table))
    console.print(
        shown(
            f"Ratios are to {folder.read_plan().baseline} with the same {key}; intervals are over"
            " launches.",
            style="dim",
        )
    )


def print_answer(summary: Comparison, folder: ResultsFolder, options: ReportOptions) -> bool:
    """Print one value if a path is given, else the first screen. Returns whether every arm is
    ok.
    """
    from reports.formats.for_programs import value_at

    if options.figure is None:
        return show(summary, folder, notify_trackers=folder.plan_path.exists())
    print(value_at(summary, options.figure))
    return summary.is_ok
