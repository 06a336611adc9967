"""``ringside report`` and ``ringside project``: what stored results say, and what they predict for
sizes that were not measured.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from measurement.errors import PlanError, RecordError, quoted
from measurement.plans.settings import Section
from runners.compare_command import (
    EARLIER,
    EXIT_FAILED,
    CompareOptions,
    exit_by_result,
    read_earlier,
    show,
)
from runners.flags import Flag, FlagValues, command, say, values_of

if TYPE_CHECKING:
    from measurement.records.results import ResultsFolder
    from reports.projection import Projection
    from reports.schema import Comparison
    from reports.what_if import Links

PROJECTION = "projection.json"
"""File of a results folder."""
UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
SLOWEST_BITS_PER_S, FASTEST_BITS_PER_S = 10**5, 10**11
_RATE = re.compile(rf"(?P<number>[0-9]{{1,9}}(\.[0-9]{{1,9}})?)(?P<unit>{'|'.join(UNITS)})")


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
REPORT_FLAGS: Sequence[Flag] = (
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
    REPORT_FLAGS,
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


def project(
    source: Annotated[
        Path,
        typer.Argument(
            help="Results folder of a study with several sizes, or with --what-if of a comparison."
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="N,N", help="Numbers of ranks to project to, such as 32,64."),
    ] = None,
    fit_up_to: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Leave larger sizes out, to see how well they are met."
        ),
    ] = None,
    is_what_if: Annotated[
        bool,
        typer.Option(
            "--what-if", help="Each arm at the size measured, without one cause of lost time."
        ),
    ] = False,
    links: Annotated[
        str | None,
        typer.Option(
            "--link",
            metavar="RATE,RATE",
            help="As --what-if, also with links of these rates, such as 1gbit.",
        ),
    ] = None,
    measured_link: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="With --link: rate of the links it was measured over, which narrows the answer.",
        ),
    ] = None,
    form: Annotated[
        Literal["table", "json"], typer.Option("--format", help="How the predictions are printed.")
    ] = "table",
) -> None:
    """Project throughput, efficiency and ratios of arms to sizes that were not measured, with 90%
    prediction intervals.

    With --what-if, say how fast the arms of a comparison would be without one cause of lost time,
    and which would be fastest.
    """
    if measured_link is not None and links is None:
        raise PlanError(
            "--measured-link goes with --link; give the rates to answer for, such as --link 10gbit"
        )
    if is_what_if or links is not None:
        if to or fit_up_to:
            raise PlanError(
                "--to and --fit-up-to are for other sizes, --what-if and --link for the size"
                " measured; give one of both"
            )
        _answer_what_if(source, _links(links, measured_link), form=form)
        return
    if to is None:
        raise PlanError(
            "nothing says what to project to; give sizes, such as --to 32,64, or --what-if"
        )
    _project_to(source, _sizes(to), fit_up_to=fit_up_to, form=form)


def _project_to(source: Path, sizes: list[int], *, fit_up_to: int | None, form: str) -> None:
    """Project a study to other sizes; print it and store it in its folder."""
    from measurement.records.results import write_result
    from reports.projection import project as project_series
    from reports.projection import refusals, series_of

    limit = float("inf") if fit_up_to is None else fit_up_to
    series, pairs = series_of(_concluded(source))
    projection = project_series(series, sizes, source=str(source), fit_up_to=limit, pairs=pairs)
    refused = refusals(projection)
    if len(refused) == len(projection.series):
        raise PlanError("; ".join(refused))
    for line in refused:
        say(line)
    write_result(source / PROJECTION, projection.model_dump_json(indent=1) + "\n")
    if form == "json":
        print(projection.model_dump_json(indent=1))
    else:
        _show_projection(projection)


def _sizes(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("[1-9][0-9]{0,6}", word) for word in words):
        raise PlanError(
            f"--to is {quoted(text)}; give numbers of ranks divided by commas, such as 32,64, of at"
            " most 7 digits"
        )
    return sorted({int(word) for word in words})


def _concluded(folder: Path) -> Comparison:
    """Conclude from records, or read the report of runs of several sizes that people started
    themselves.
    """
    from measurement.files import read_text
    from measurement.records.results import ResultsFolder
    from reports import conclude
    from reports.schema import Comparison

    report = folder / "comparison.json"
    if (folder / "plan.yaml").is_file() or not report.is_file():
        return conclude(ResultsFolder(folder))
    try:
        return Comparison.model_validate_json(read_text(report), extra="ignore")
    except (OSError, ValueError) as error:
        raise RecordError(
            f"'{report}' is not a report of runs of several sizes; make one with 'ringside report"
            " RUN RUN ...'"
        ) from error


def _answer_what_if(source: Path, links: Links, *, form: str) -> None:
    from pydantic import TypeAdapter

    from measurement.records.results import ResultsFolder
    from reports import conclude
    from reports.formats import new_console
    from reports.formats.pages import caption
    from reports.formats.terminal import rich_table, shown
    from reports.tables.sections import what_if_table

    comparison = conclude(ResultsFolder(source), links=links)
    by_place = {place: point.what_if for place, point in comparison.places.items()}
    answers = [answer for of_place in by_place.values() for answer in of_place]
    for line in dict.fromkeys(
        f"{answer.scenario}: not known: {answer.arms[0].unknown}"
        for answer in answers
        if answer.is_unknown
    ):
        say(line)
    if all(answer.is_unknown for answer in answers):
        raise PlanError(
            f"'{source}' has no terms to answer from; they need steps without exchange"
            " (measurement: local_every)"
        )
    if form == "json":
        content = by_place if comparison.points else answers
        print(TypeAdapter(Any).dump_json(content, indent=1).decode())
        return
    console = new_console()
    console.print(rich_table(what_if_table(comparison)))
    console.print(shown(caption("what_if", comparison)), soft_wrap=True)


def _links(rates: str | None, measured: str | None) -> Links:
    """The links to answer for, and the rate of those it was measured over."""
    from reports.what_if import Links

    measured_rates = _rates("--measured-link", measured)
    if len(measured_rates) > 1:
        raise PlanError(f"--measured-link is {quoted(measured)}; give one rate, such as 1gbit")
    return Links(rates=_rates("--link", rates), measured=next(iter(measured_rates), None))


def _rates(flag: str, text: str | None) -> list[int]:
    try:
        return [parse_rate(word) for word in text.split(",")] if text is not None else []
    except ValueError as error:
        raise PlanError(f"{flag} is {quoted(text or '')}; {error}") from error


def parse_rate(text: str) -> int:
    """Bits per second.

    Raises:
        ValueError: the text is no rate, or one that no link has.
    """
    parts = _RATE.fullmatch(text.strip().lower())
    rate = round(float(parts["number"]) * UNITS[parts["unit"]]) if parts else 0
    if not SLOWEST_BITS_PER_S <= rate <= FASTEST_BITS_PER_S:
        raise ValueError("give 100kbit to 100gbit, such as 1gbit or 100mbit")
    return rate


def _show_projection(projection: Projection) -> None:
    from reports.formats import new_console
    from reports.formats.terminal import rich_table, shown
    from reports.projection import notes, projection_table, ratio_table

    console = new_console()
    console.print(rich_table(projection_table(projection)))
    if projection.ratios:
        console.print()
        console.print(rich_table(ratio_table(projection)))
    for line in notes(projection):
        console.print(shown(line), soft_wrap=True)
