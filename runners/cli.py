"""The ``ringside`` command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from measurement.errors import RingsideError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
PIPED_WIDTH = 100
"""Columns of the verdict table where no terminal says its own; in 80 the notes would stand letter under letter."""


@app.callback()
def describe() -> None:
    """Horovod or native torch.distributed: which is faster for your model on your machines, by how much, and why."""


@app.command()
def compare(
    plan: Annotated[Path, typer.Argument(help="A comparison plan (YAML).")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Results folder; one that exists is resumed. [results/NAME-TIME]"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the plan; may be repeated."),
    ] = None,
    until_decided: Annotated[bool, typer.Option("--until-decided", help="Add launches until no verdict is undecided.")] = False,
    max_minutes: Annotated[float | None, typer.Option(help="With --until-decided: no new launch after this long.")] = None,
) -> None:
    """Run a plan: measure its arms interleaved, print the verdicts, write the reports."""
    from measurement.plan import read_plan
    from measurement.results import ResultsFolder
    from runners.compare import ComparisonRun, default_folder
    from runners.progress import Progress

    overrides = list(settings or [])
    if until_decided:
        overrides.append("measurement.until_decided=true")
    if max_minutes is not None:
        overrides.append(f"measurement.max_minutes={max_minutes}")
    chosen = read_plan(plan, overrides=overrides)
    folder = ResultsFolder(output or default_folder(chosen))
    with Progress(seconds_per_launch=chosen.measurement.seconds_per_launch) as progress:
        run = ComparisonRun(chosen, folder, progress=progress)
        run.prepare()
        try:
            comparison = run.run()
        except KeyboardInterrupt:
            interrupted = getattr(run, "comparison", None)
            progress.__exit__(None, None, None)
            if interrupted is not None:
                show(interrupted, folder.root)
            print(f"ringside: interrupted; go on with: ringside compare {plan} -o {folder.root}", file=sys.stderr)
            raise typer.Exit(EXIT_INTERRUPTED) from None
    show(comparison, folder.root)
    if any(arm.status != "ok" for arm in comparison.arms):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A folder that 'ringside compare' wrote.")]) -> None:
    """Rebuild the reports of a comparison from its records."""
    from measurement.results import ResultsFolder
    from reports import write_reports

    show(write_reports(ResultsFolder(folder)), folder)


@app.command()
def doctor() -> None:
    """What is installed, built and reachable here, with the remedy for what is not."""
    from runners.doctor import diagnose, print_findings

    print_findings(diagnose())


def show(comparison: Any, folder: Path) -> None:
    """The verdict table on stdout, and where the reports are."""
    from rich.console import Console

    from reports.terminal import verdict_table

    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    console.print(comparison.headline, markup=False, highlight=False, soft_wrap=True)
    console.print(verdict_table(comparison))
    console.print(f"report: {folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Entry point: a user's error is one message on stderr and exit code 2."""
    run_command(app)


def run_command(command: Callable[[], Any]) -> None:
    """Run a command line; ``RingsideError`` becomes one message and exit code 2."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # c10d reports each wait that times out, and the driver waits in turns
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        command()
    except RingsideError as error:
        print(f"ringside: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


def _interrupt(*_: object) -> NoReturn:
    """SIGTERM ends a comparison as Ctrl-C does: processes ended, measurements kept."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
