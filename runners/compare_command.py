"""``ringside compare``, and what all commands that measure share: progress, the first screen, how
to resume after Ctrl-C.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from measurement.errors import PlanError, RingsideError, printable
from measurement.plans.plan import Plan
from measurement.plans.sections import Measurement
from runners.flags import (
    MINUTES,
    Flag,
    FlagValues,
    SessionOptions,
    command,
    command_to_repeat,
    percent_of,
    say,
    session_flags,
    values_of,
)
from runners.processes.process_exit import interrupted_code

if TYPE_CHECKING:
    from measurement.records.record import LaunchRecord
    from measurement.records.results import ResultsFolder
    from reports.against import StoredComparison
    from reports.schema import Comparison
    from runners.driver.run_comparison import ComparisonRun

EXIT_FAILED, EXIT_REGRESSED = 1, 3
PLAN, MEASURING, EARLIER = "Plan", "Measuring", "An earlier result"


class CompareOptions(SessionOptions):
    """Options of ``ringside compare`` besides a plan's own settings."""

    plan: Path | None = None
    """A comparison plan (YAML), or the name of one of Ringside's own, such as local."""
    available: bool = False
    """Leave out arms that this machine cannot run."""
    dry_run: bool = False
    """Check arms and hosts, show the command that each arm stands for, and measure nothing. Each
    command runs by itself."""
    against: Path | None = None
    """Results of this plan at an earlier date: say what changed since."""
    allow_slower: str | None = None
    """With --against: the share of its speed that a figure may lose. A regression beyond it ends
    with code 3. [5%]"""


_option, _measurement = (
    partial(Flag, PLAN, CompareOptions),
    partial(Flag, MEASURING, Measurement, default=None),
)
FLAGS: Sequence[Flag] = (
    _option("plan", is_argument=True),
    *session_flags(CompareOptions, PLAN),
    _option("available"),
    _option("dry_run"),
    _measurement("minutes", help=MINUTES),
    _measurement("max_minutes"),
    _measurement(
        "rehearsal",
        help=(
            "Try every arm before the first launch: once, unless it passed before; always; or"
            " never."
        ),
    ),
    Flag(MEASURING, Plan, "trace", help="Afterwards trace a few steps of every arm, for Perfetto."),
    Flag(EARLIER, CompareOptions, "against", metavar="OLD"),
    Flag(EARLIER, CompareOptions, "allow_slower", metavar="PERCENT"),
)


def run_compare(flags: FlagValues) -> None:
    """Run a plan; the exit code says what the result is."""
    from measurement.records.results import ResultsFolder, default_folder
    from reports.against import StoredComparison
    from runners.planning.arm_checks import arms_to_compare, left_out_line
    from runners.planning.plan_reading import read_plan, require_named

    options = CompareOptions(**values_of(flags, CompareOptions))
    reference = require_named(options.plan)
    overrides = [
        *options.settings,
        *(f"measurement.{name}={value}" for name, value in values_of(flags, Measurement).items()),
    ]
    overrides += [f"{name}={value}" for name, value in values_of(flags, Plan).items()]
    plan = read_plan(reference, overrides=overrides)
    folder = ResultsFolder(options.output or default_folder(plan.name))
    earlier = read_earlier(options.against, options.allow_slower)
    if earlier is not None and not plan.points:
        earlier.require_like(StoredComparison(folder=folder, plan=plan))
    plan = arms_to_compare(plan, folder, only_available=options.available)
    if plan.left_out:
        say(f"{left_out_line(plan.left_out)}; compared: {', '.join(plan.arms)}")
    if options.dry_run:
        print_commands(plan)
        return
    again = command_to_repeat(folder.root)
    if plan.points and earlier is not None:
        raise PlanError(
            "--against follows the run of a plan that has points: run it without, then 'ringside"
            " report NEW --against OLD'"
        )
    exit_by_result(
        measure(
            plan, folder, again=again, earlier=earlier, resume_elsewhere=options.resume_elsewhere
        )
    )


compare = command(
    run_compare,
    FLAGS,
    text="Run a plan: measure its arms interleaved, print the verdicts, write the reports.",
)


def print_commands(plan: Plan) -> None:
    """Check all that needs no start, then print the command of each arm at each point of a plan."""
    from runners.driver.compared_arms import ComparedArms
    from runners.driver.run_comparison import point_plans

    show_stage = partial(print, file=sys.stderr)
    for point, point_plan in point_plans(plan).items() if plan.points else [("", plan)]:
        compared = ComparedArms(point_plan, say=show_stage)
        notes = [f"note: {note}" for note in compared.check()]
        for line in [*notes, *(f"warning: {warning}" for warning in compared.warnings())]:
            show_stage(printable(line))
        for name in point_plan.arms:
            setup = compared.arms[name]
            command = setup.command(compared.inspection.placement, setup.plan.seed)
            batch = ", with the largest batch that fits in memory" if setup.arm.fit else ""
            print(
                f"{name}{f' at {point}' if point else ''}{batch}:",
                *command.splitlines(),
                sep="\n  ",
            )


def read_earlier(
    folder: Path | None, allow_slower: str | None, *, allowed: Sequence[str] = ()
) -> StoredComparison | None:
    """Read the result that a new one is compared with; None without ``--against``."""
    from measurement.records.results import ResultsFolder
    from reports.against import StoredComparison

    if folder is None:
        if allow_slower is not None:
            raise PlanError(
                "--allow-slower says what may be lost since an earlier result; name that with"
                " --against OLD"
            )
        return None
    share = percent_of(allow_slower or "5%", flag="--allow-slower") / 100
    return StoredComparison.read(ResultsFolder(folder), allow_slower=share, allowed=allowed)


def exit_by_result(comparison: Comparison) -> None:
    """Exit with a code if an arm is not ok, or a regression is beyond what is allowed."""
    if not comparison.is_ok:
        raise typer.Exit(EXIT_FAILED)
    if comparison.against is not None and comparison.against.beyond:
        raise typer.Exit(EXIT_REGRESSED)


def measure(
    plan: Plan,
    folder: ResultsFolder,
    *,
    again: Sequence[str],
    resume_elsewhere: bool = False,
    earlier: StoredComparison | None = None,
    is_shown: bool = True,
    tried: Sequence[LaunchRecord] = (),
) -> Comparison:
    """Measure, show the result and send it to trackers; measure only if not ``is_shown``.

    On Ctrl-C, print how to resume.
    """
    from runners.driver.run_comparison import ComparisonRun, StudyRun
    from runners.progress import LaunchProgress

    progress = LaunchProgress(seconds_per_launch=plan.measurement.expected_launch_s)
    run: ComparisonRun | StudyRun | None = None
    try:
        with nullcontext() if plan.points else progress:  # each point shows its own progress
            if plan.points:
                run = StudyRun(plan, folder, resume_elsewhere=resume_elsewhere)
            else:
                run = ComparisonRun(
                    plan,
                    folder,
                    progress=progress,
                    resume_elsewhere=resume_elsewhere,
                    earlier=earlier,
                    tried=tried,
                )
            run.prepare()
            comparison = run.run()
    except (KeyboardInterrupt, RingsideError) as error:
        if run is not None and run.comparison is not None and is_shown:  # what was measured so far
            show(run.comparison, folder)
        if isinstance(error, KeyboardInterrupt):
            say(f"interrupted; go on with: {shlex.join(again)}")
            raise typer.Exit(interrupted_code()) from None
        raise
    if is_shown:
        show(comparison, folder, notify_trackers=True)
    return comparison


def run_trial(plan: Plan, folder: ResultsFolder) -> list[LaunchRecord]:
    """Run the trial of each command of a plan alone, and show how they differ; returns its records,
    none if one failed.
    """
    from runners.driver.run_comparison import ComparisonRun
    from runners.progress import LaunchProgress

    with LaunchProgress(seconds_per_launch=plan.measurement.expected_launch_s) as progress:
        return ComparisonRun(plan, folder, progress=progress).try_alone()


def show(summary: Comparison, folder: ResultsFolder, *, notify_trackers: bool = False) -> bool:
    """Print changes since an earlier result, the first screen, and where the reports are.

    Returns ``is_ok``.

    With ``notify_trackers``, send the result to the plan's trackers. A failure is a line on stderr;
    the exit code stays.
    """
    from reports import send_reports
    from reports.formats import new_console
    from reports.formats.terminal import against_group, comparison_lines, shown

    console = new_console()
    if summary.against is not None:
        console.print(shown(summary.against.headline), against_group(summary), soft_wrap=True)
    console.print(comparison_lines(summary))
    console.print(
        f"report: {folder.root / 'report.html'}", markup=False, highlight=False, soft_wrap=True
    )
    sys.stdout.flush()
    for failure in send_reports(folder, summary) if notify_trackers else []:
        say(failure)
    return summary.is_ok
