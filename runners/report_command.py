"""``ringside report``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from measurement.errors import PlanError
from measurement.plans.settings import Section
from runners.compare_command import EARLIER, EXIT_FAILED, CompareOptions, end_with, read_earlier, show
from runners.flags import Flag, Given, command, values_of

if TYPE_CHECKING:
    from measurement.records.results import ResultsFolder
    from reports.schema import Comparison


class ReportOptions(Section):
    """What ``ringside report`` is asked."""

    folders: tuple[str, ...]
    """A folder of 'ringside compare'; or those of runs that you started, or one above them, with names of your choice as in old=RUN
    new=RUN."""
    baseline: str | None = None
    """For your runs: the reference arm. [that of the first run]"""
    output: Path | None = None
    """For your runs: folder to write. [results/report-TIME]"""
    allow: tuple[str, ...] = ()
    """For your runs, and --against: compare although this differs; may be repeated."""
    by: str | None = None
    """For a comparison: figures for each value of a key of its records, such as host, rank, seed, launch or round, in the place of
    the first screen."""
    figure: str | None = None
    """Print one value of comparison.json in the place of the first screen, such as results.horovod.throughput_ratio."""

    def report_folder(self) -> ResultsFolder:
        """Return the folder to write; refuses one that holds measurements."""
        from measurement.records.results import ResultsFolder, default_folder

        found = ResultsFolder(self.output or default_folder("report"))
        if found.plan_path.exists():
            raise PlanError(f"'{found.root}' holds measurements; give another folder for the report with -o")
        return found


_own, _earlier = partial(Flag, "Results", ReportOptions), partial(Flag, EARLIER, CompareOptions)
FLAGS: Sequence[Flag] = (
    _own("folders", is_argument=True),
    _own("baseline"),
    _own("output", ("-o", "--output")),
    _own("allow", metavar="FIELD"),
    _own("by", metavar="KEY"),
    _own("figure", ("--json",), metavar="PATH"),
    _earlier("against", metavar="OLD", help="For a comparison: its results at an earlier date; say what changed since."),
    _earlier("allow_slower", metavar="PERCENT"),
)


def report_given(given: Given) -> None:
    """Rebuild reports, or make one, and end with the code that says what came out."""
    from measurement.records.results import ResultsFolder
    from reports import write_reports
    from reports.runs import is_separate

    asked, more = ReportOptions(**values_of(given, ReportOptions)), CompareOptions(**values_of(given, CompareOptions))
    results = ResultsFolder(Path(asked.folders[0]))
    if asked.by is not None:
        besides = [flag.name for flag in given if flag.field not in ("folders", "by")]
        if besides or len(asked.folders) > 1:
            raise PlanError(f"--by looks into one results folder; leave {', '.join(besides) or 'the other folders'} out")
        show_by_key(results, asked.by)
        return
    earlier = read_earlier(more.against, more.allow_slower, allowed=asked.allow)
    if earlier is not None:
        if len(asked.folders) > 1 or asked.baseline or asked.output:
            raise PlanError(
                "--against holds the folder of one comparison against an earlier one; leave other folders and flags out"
            )
        comparison = write_reports(results, earlier=earlier)
        tell(comparison, results, asked)
        end_with(comparison)
        return
    if len(asked.folders) > 1 or not results.plan_path.is_file() or is_separate(results):
        is_ok = report_runs(asked)
    else:
        for flag, value in (("--baseline", asked.baseline), ("-o", asked.output), ("--allow", asked.allow)):
            if value:
                raise PlanError(f"{flag} is for runs that you started yourself; '{results.root}' is a comparison: leave it out")
        is_ok = tell(write_reports(results), results, asked)
    if not is_ok:
        raise typer.Exit(EXIT_FAILED)


report = command(
    report_given,
    FLAGS,
    text="Rebuild the reports of a comparison, or make one of runs that you started yourself, such as python -m runners.hvd.",
)


def report_runs(asked: ReportOptions) -> bool:
    """Compare runs that people started themselves; write and show the reports. Returns whether every run is ok."""
    from reports.runs import read_runs
    from reports.separate_runs import conclude_runs, write_runs

    where = asked.report_folder()
    found = conclude_runs(read_runs(list(asked.folders)), name=where.root.name, baseline=asked.baseline, allowed=asked.allow)
    write_runs(found, where)
    return tell(found, where, asked)


def show_by_key(folder: ResultsFolder, key: str) -> None:
    """Print the figures of a comparison for each value of a key; writes nothing."""
    from reports.by_key import table_by_key
    from reports.formats.console import new_console
    from reports.formats.terminal import rich_table, shown

    console, table = new_console(), table_by_key(folder, key)
    console.print(rich_table(table))
    console.print(
        shown(f"Ratios are to {folder.read_plan().baseline} with the same {key}; intervals are over launches.", style="dim")
    )


def tell(summary: Comparison, folder: ResultsFolder, asked: ReportOptions) -> bool:
    """Print what is asked for: one value, or the first screen. Returns whether every arm is ok."""
    from reports.formats.for_programs import value_at

    if asked.figure is None:
        return show(summary, folder, tells=folder.plan_path.exists())
    print(value_at(summary, asked.figure))
    return summary.is_ok
