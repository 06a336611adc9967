"""The ``ringside`` command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from measurement.errors import PlanError, RingsideError, printable, unknown_name
from measurement.registry import search_beside
from runners.history_command import history
from runners.lab.lab_commands import app as lab
from runners.processes.process_exit import begin_in_utf8, interrupted_code, run_command
from runners.project_command import project
from runners.scripts.ab_command import ab_command
from runners.submission.manifests_command import manifests
from runners.submission.submit_command import status, submit
from runners.tuning.tune_command import tune_command

if TYPE_CHECKING:
    from measurement.plans.plan import Plan
    from measurement.records.results import ResultsFolder
    from reports.regressions.measured import Earlier
    from reports.schema import Comparison
    from reports.study_schema import Study
    from runners.driver.run_comparison import ComparisonRun


class Commands(TyperGroup):
    """The commands; of one that is not there, the closest is told."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            raise PlanError(unknown_name("command", args[0], self.commands, remedy="see 'ringside --help'"))
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(lab, name="lab")
app.command("submit")(submit)
app.command()(status)
app.command("manifests")(manifests)
app.command()(project)
app.command()(history)

EXIT_FAILED, EXIT_REGRESSED = 1, 3
SLOWER = "With --against: the share of its speed that a figure may lose. A regression beyond it ends with code 3. [5%]"
TIMINGS = "Show where the seconds of launches go, too."


def print_version(wanted: bool) -> None:
    """Print Ringside's version and end, if that is wanted."""
    if wanted:
        from importlib.metadata import version

        print(f"ringside {version('ringside')}")
        raise typer.Exit


@app.callback()
def describe(
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Horovod or native torch.distributed: which is faster for your model on your machines, by how much, and why."""


@app.command()
def compare(
    plan: Annotated[
        Path | None, typer.Argument(help="A comparison plan (YAML), or the name of one of Ringside's own, such as local.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Results folder; one that exists is resumed. [results/NAME-TIME]"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the plan; may be repeated."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes to spend; launches and their length are chosen so that intervals are narrow.")
    ] = None,
    until_decided: Annotated[bool, typer.Option("--until-decided", help="Add launches until no verdict is undecided.")] = False,
    max_minutes: Annotated[float | None, typer.Option(help="With --until-decided: no new launch after this long.")] = None,
    rehearsal: Annotated[
        bool | None,
        typer.Option(
            "--rehearse/--no-rehearsal", help="Try every arm first even if it passed before, or not at all. [once for each plan]"
        ),
    ] = None,
    available: Annotated[
        bool,
        typer.Option("--available", help="Leave out arms that this machine cannot run."),
    ] = False,
    resume_elsewhere: Annotated[
        bool, typer.Option("--resume-elsewhere", help="Resume even if versions, machine or sources changed.")
    ] = False,
    against: Annotated[
        Path | None, typer.Option(metavar="OLD", help="Results of this plan at an earlier date: say what changed since.")
    ] = None,
    allow_slower: Annotated[str | None, typer.Option(metavar="PERCENT", help=SLOWER)] = None,
    timings: Annotated[bool, typer.Option("--timings", help=TIMINGS)] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Afterwards trace a few steps of every arm, for Perfetto.")] = False,
) -> None:
    """Run a plan: measure its arms interleaved, print the verdicts, write the reports."""
    from measurement.records.results import ResultsFolder, default_folder
    from reports.regressions.measured import Measured
    from runners.planning.available import arms_to_compare, left_out_line
    from runners.planning.plan_reading import DEFAULT, PLANS, find_plan, read_plan, require_named

    plan = require_named(plan)
    overrides = [*(settings or []), *(["trace=true"] if trace else [])]
    if until_decided:
        overrides.append("measurement.until_decided=true")
    if rehearsal is not None:
        overrides.append(f"measurement.rehearsal={'always' if rehearsal else 'never'}")
    if max_minutes is not None:
        overrides.append(f"measurement.max_minutes={max_minutes}")
    if minutes is not None:
        overrides.append(f"measurement.minutes={minutes}")
    chosen = read_plan(plan, overrides=overrides)
    folder = ResultsFolder(output or default_folder(chosen.name))
    earlier = read_earlier(against, allow_slower)
    if earlier is not None and not chosen.points:
        earlier.require_like(Measured(folder=folder, plan=chosen))
    has_next = find_plan(plan).resolve() == PLANS / f"{DEFAULT}.yaml"
    chosen = arms_to_compare(chosen, folder, only_available=available, has_next=has_next)
    if chosen.left_out:
        print(f"ringside: {left_out_line(chosen.left_out)}; compared: {', '.join(chosen.arms)}", file=sys.stderr)
    again = ["ringside", "compare", str(plan), "-o", str(folder.root), *(word for one in overrides for word in ("--set", one))]
    again += ["--resume-elsewhere"] if resume_elsewhere else []
    again += [
        word for flag, value in (("--against", against), ("--allow-slower", allow_slower)) if value for word in (flag, str(value))
    ]
    if chosen.points:
        refuse_for_points({"--against": earlier, "--timings": timings})
        if not run_study(chosen, folder, again=again, resume_elsewhere=resume_elsewhere):
            raise typer.Exit(EXIT_FAILED)
        return
    end_with(measure(chosen, folder, again=again, resume_elsewhere=resume_elsewhere, earlier=earlier, timings=timings))


def refuse_for_points(given: Mapping[str, object]) -> None:
    """Refuse flags that a study has no answer to; by their names, what was given."""
    for flag in (flag for flag, value in given.items() if value):
        raise PlanError(f"{flag} is for one comparison, and this plan has points; give 'ringside report' one of them")


def read_earlier(folder: Path | None, allow_slower: str | None, *, allowed: Sequence[str] = ()) -> Earlier | None:
    """Read the result that a new one is held against; None where there is no ``--against``."""
    from measurement.records.results import ResultsFolder
    from reports.regressions.measured import Earlier, Measured
    from runners.scripts.ab_command import percent_of

    if folder is None:
        if allow_slower is not None:
            raise PlanError("--allow-slower says what may be lost since an earlier result; name that with --against OLD")
        return None
    share = percent_of(allow_slower or "5%", flag="--allow-slower") / 100
    return Earlier(result=Measured.read(ResultsFolder(folder)), allow_slower=share, allowed=allowed)


def end_with(comparison: Comparison) -> None:
    """End with the code that says what came out: an arm that is not ok, or a regression beyond what is allowed."""
    if not comparison.is_ok:
        raise typer.Exit(EXIT_FAILED)
    if comparison.against is not None and comparison.against.beyond:
        raise typer.Exit(EXIT_REGRESSED)


def measure(
    chosen: Plan,
    folder: ResultsFolder,
    *,
    again: Sequence[str],
    resume_elsewhere: bool = False,
    earlier: Earlier | None = None,
    timings: bool = False,
    is_shown: bool = True,
) -> Comparison:
    """Measure and show, then tell the trackers; neither, where it is a part of something larger. On Ctrl-C, how to go on."""
    from runners.driver.progress import LaunchProgress

    run: ComparisonRun | None = None
    try:
        with LaunchProgress(seconds_per_launch=chosen.measurement.expected_launch_s) as progress:
            run = comparison_of(chosen)(chosen, folder, progress=progress, resume_elsewhere=resume_elsewhere, earlier=earlier)
            run.prepare()
            comparison = run.run()
    except (KeyboardInterrupt, RingsideError) as error:
        if run is not None and run.comparison is not None and is_shown:  # it is measured, as far as it came
            show(run.comparison, folder)
        if isinstance(error, KeyboardInterrupt):
            raise interrupted_by_user(again) from None
        raise
    if is_shown:
        show(comparison, folder, tells=True, timings=timings)
    return comparison


def comparison_of(chosen: Plan) -> type[ComparisonRun]:
    """Return what runs a plan: of workloads, or of commands."""
    from runners.driver.run_comparison import ComparisonRun
    from runners.scripts.script_comparison import ScriptComparison

    return ScriptComparison if chosen.are_scripts else ComparisonRun


def run_study(chosen: Plan, folder: ResultsFolder, *, again: Sequence[str], resume_elsewhere: bool = False) -> bool:
    """Measure at every point of the plan and show; returns whether every arm is ok."""
    from runners.driver.run_study import StudyRun

    run: StudyRun | None = None
    try:
        run = StudyRun(chosen, folder, resume_elsewhere=resume_elsewhere)
        run.prepare()
        study = run.run()
    except KeyboardInterrupt:
        if run is not None and run.report is not None:
            show(run.report, folder)
        raise interrupted_by_user(again) from None
    return show(study, folder, tells=True)


def interrupted_by_user(again: Sequence[str]) -> typer.Exit:
    """How to go on, told on stderr; what to raise. ``again``: the command that asks for the same."""
    print(f"ringside: interrupted; go on with: {printable(shlex.join(again))}", file=sys.stderr)
    return typer.Exit(interrupted_code())


app.command("ab")(ab_command(measure))
app.command()(tune_command(measure))


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The plan to write; a file that exists stays as it is.")] = Path("plan.yaml"),
) -> None:
    """Write a commented plan that runs as it is, to begin your own with."""
    from runners.planning.plan_reading import write_template

    write_template(file)
    name = shlex.quote(str(file))
    print(f"wrote {file}; try it out: ringside check {name}; run it: ringside compare {name}")


@app.command()
def report(
    folders: Annotated[
        list[str],
        typer.Argument(
            help="A folder of 'ringside compare'; or those of runs that you started, or one above them, with names of your choice "
            "as in old=RUN new=RUN; or another tool's figures, a CSV of arm, run, samples, seconds."
        ),
    ],
    baseline: Annotated[
        str | None, typer.Option(help="For your runs, or a CSV: the reference arm. [that of the first run]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="For your runs, or a CSV: folder to write. [results/report-TIME]")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="For your runs, and --against: compare although this differs; may be repeated."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="OLD", help="For a comparison: its results at an earlier date; say what changed since.")
    ] = None,
    allow_slower: Annotated[str | None, typer.Option(metavar="PERCENT", help=SLOWER)] = None,
    timings: Annotated[bool, typer.Option("--timings", help=TIMINGS)] = False,
) -> None:
    """Rebuild the reports of a comparison, or make one of runs that you started yourself, such as python -m runners.hvd."""
    from measurement.records.results import ResultsFolder
    from reports import write_reports
    from reports.compose_study import write_study
    from reports.other_figures import is_figures
    from reports.run_folders import is_separate

    results = ResultsFolder(Path(folders[0]))
    earlier = read_earlier(against, allow_slower, allowed=allow or [])
    if earlier is not None:
        if len(folders) > 1 or baseline or output:
            raise PlanError(
                "--against holds the folder of one comparison against an earlier one; leave other folders and flags out"
            )
        comparison = write_reports(results, earlier=earlier)
        show(comparison, results, tells=True, timings=timings)
        end_with(comparison)
        return
    if any(is_figures(Path(folder)) for folder in folders):
        is_ok = report_figures(folders, baseline=baseline, output=output, allow=allow or [])
    elif len(folders) > 1 or not results.plan_path.is_file() or is_separate(results):
        is_ok = report_runs(folders, baseline=baseline, output=output, allow=allow or [])
    else:
        for flag, value in (("--baseline", baseline), ("-o", output), ("--allow", allow)):
            if value:
                raise PlanError(f"{flag} is for runs that you started yourself; '{results.root}' is a comparison: leave it out")
        points = results.read_plan().points
        if points and timings:
            raise PlanError(f"--timings is for one comparison; give it a point, such as '{results.point(next(iter(points))).root}'")
        is_ok = show(write_study(results, points=True) if points else write_reports(results), results, tells=True, timings=timings)
    if not is_ok:
        raise typer.Exit(EXIT_FAILED)


def report_figures(files: list[str], *, baseline: str | None, output: Path | None, allow: list[str]) -> bool:
    """Compare another tool's figures; write and show the reports."""
    from measurement.records.results import ResultsFolder, default_folder
    from reports.other_figures import conclude_figures
    from reports.separate_runs import ConcludedRuns, write_runs

    if len(files) > 1 or allow:
        raise PlanError("a CSV of figures is reported by itself, and has no conditions to --allow; put all arms into one file")
    where = ResultsFolder(output or default_folder("report"))
    if where.plan_path.exists():
        raise PlanError(f"'{where.root}' holds measurements; give another folder for the report with -o")
    found = conclude_figures(Path(files[0]), name=where.root.name, baseline=baseline)
    write_runs(ConcludedRuns(summary=found), where)
    return show(found, where)


def report_runs(folders: list[str], *, baseline: str | None, output: Path | None, allow: list[str]) -> bool:
    """Compare runs that people started themselves; write and show the reports. Returns whether every run is ok."""
    from measurement.records.results import ResultsFolder, default_folder
    from reports.run_folders import read_runs
    from reports.separate_runs import conclude_runs, write_runs

    where = ResultsFolder(output or default_folder("report"))
    if where.plan_path.exists():
        raise PlanError(f"'{where.root}' holds measurements; give another folder for the report with -o")
    found = conclude_runs(read_runs(folders), name=where.root.name, baseline=baseline, allowed=allow)
    write_runs(found, where)
    return show(found.summary, where)


@app.command()
def check(
    workload: Annotated[str, typer.Argument(help="A workload: a name, module:Class or path/to/file.py:Class; or a plan (YAML).")],
    workload_option: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the workload.")] = None,
    local_batch_size: Annotated[int, typer.Option(min=1, help="Samples per rank of the run; at most 2 are tried.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and batches.")] = 1,
) -> None:
    """Try a workload out on the CPU, in seconds: what every run would call, and what cannot work, with the line and the remedy."""
    from measurement.plans.plan_file import check_plan
    from runners.planning.arms import resolve_arms
    from runners.planning.check_process import check_and_print
    from runners.planning.own_checks import require_own_work
    from runners.planning.plan_reading import is_plan, read_plan
    from runners.scripts.check_scripts import print_scripts
    from runners.standalone.flags import settings

    if is_plan(workload):
        plan = read_plan(Path(workload))
        if plan.are_scripts:
            print_scripts(plan)
            return
        check_and_print(plan, with_arms=True)
        for note in require_own_work(resolve_arms(plan).values(), host=None).notes if plan.has_own_work else []:
            print(f"  note       {note}")
        if not rehearse_and_print(plan):
            raise typer.Exit(EXIT_FAILED)
        return
    options = settings(workload_option, "--workload-option")
    asked = {"workload": workload, "workload_options": options, "local_batch_size": local_batch_size, "seed": seed}
    alone = {"name": "check", "world_size": 2, "baseline": "ddp", "arms": {"ddp": {"backend": "ddp"}}}
    check_and_print(check_plan({**asked, **alone}, source="command line"), with_arms=False)
    print("nothing to mend")


def rehearse_and_print(plan: Plan) -> bool:
    """Rehearse a plan's arms on this machine and print what came of each. Returns whether none failed."""
    from runners.driver.progress import LaunchProgress
    from runners.driver.rehearsal import rehearse_here

    with LaunchProgress(seconds_per_launch=1.0) as progress:
        outcomes, folder = rehearse_here(plan, progress=progress)
    for name, outcome in outcomes.items():
        print(f"  arm        {name}: {outcome}")
    has_failed = any(not outcome.startswith(("ok", "not tried")) for outcome in outcomes.values())
    print(f"logs: {folder}" if has_failed else "nothing to mend")
    return not has_failed


@app.command()
def doctor() -> None:
    """Show what is installed, built and reachable here, with the remedy for what is not."""
    from runners.doctor.command import diagnose, print_findings

    print_findings(diagnose())


@app.command()
def hosts(
    hostfile: Annotated[
        Path | None,
        typer.Argument(help="Hostfile (see hostfiles/), or a batch job's node file. [those of the job]"),
    ] = None,
    listed: Annotated[str | None, typer.Option("-H", "--hosts", help="Hosts, such as host1:4,host2:4, in place of a file.")] = None,
    world_size: Annotated[int | None, typer.Option("-np", "--np", help="Ranks to place. [as many as slots]")] = None,
    reach: Annotated[bool, typer.Option("--reach/--no-reach", help="Look at each host, over ssh.")] = True,
) -> None:
    """Show what a hostfile says, whether ranks can be started on its hosts, and which rank goes where."""
    from reports.formats.console import new_console
    from runners.hosts.hosts_command import named_hosts, show_hosts

    if not show_hosts(named_hosts(hostfile, listed), world_size=world_size, reach=reach, console=new_console()):
        raise typer.Exit(EXIT_FAILED)


def show(summary: Comparison | Study, folder: ResultsFolder, *, tells: bool = False, timings: bool = False) -> bool:
    """The first screen on stdout, below what changed since an earlier result, and where the reports are. Returns ``is_ok``.

    With ``timings``, where the seconds of launches went comes after it. With ``tells``, trackers that the plan names are told then:
    one that cannot be is a line on stderr, and no other exit code.
    """
    from reports import send_reports
    from reports.formats.console import new_console
    from reports.formats.terminal import against_group, comparison_lines, shown, study_lines
    from reports.study_schema import Study

    console = new_console()
    if isinstance(summary, Study):
        console.print(study_lines(summary))
    else:
        if summary.against is not None:
            console.print(shown(summary.against.headline), against_group(summary), soft_wrap=True)
        console.print(comparison_lines(summary, timings=timings))
    console.print(f"report: {folder.root / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    sys.stdout.flush()
    for failure in send_reports(folder, summary) if tells else []:
        print(f"ringside: {printable(failure)}", file=sys.stderr)
    return summary.is_ok


def main() -> None:
    """Entry point: a user's error is one message on stderr and exit code 2."""
    begin_in_utf8()
    run_command(_serve)


def _serve() -> None:
    search_beside(Path.cwd())  # as ``python -m`` does
    app()


if __name__ == "__main__":
    main()
