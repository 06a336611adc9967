"""The ``ringside`` command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from measurement.registry import search_beside
from runners.compare_command import EXIT_FAILED, compare, measure, print_commands, run_trial
from runners.flags import command
from runners.job_command import job
from runners.processes.process_exit import run_command
from runners.results_commands import project, report
from runners.scripts import ab_command, bisect_command, gate_command, run_script
from runners.tune_command import tune

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
SCRIPT_COMMANDS: Mapping[str, ModuleType] = {
    "ab": ab_command,
    "run": run_script,
    "bisect": bisect_command,
    "gate": gate_command,
}
app.command("compare")(compare)
app.command("report")(report)
for name, module in SCRIPT_COMMANDS.items():
    run = partial(module.run_given, measure, run_trial)
    app.command(name, epilog=module.EXAMPLES)(command(run, module.FLAGS, text=module.TEXT))
app.command("tune")(tune)
app.command("job")(job)
app.command("project")(project)


def print_version(wanted: bool) -> None:
    """Print Ringside's version and exit, if ``wanted``."""
    if wanted:
        from importlib.metadata import version

        print(f"ringside {version('ringside')}")
        raise typer.Exit


@app.callback()
def describe(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=print_version, is_eager=True),
    ] = False,
) -> None:
    """Horovod or native torch.distributed: which is faster for your model on your machines, by how
    much, and why.
    """


@app.command()
def init(
    file: Annotated[
        Path, typer.Argument(help="The plan to write; a file that exists stays as it is.")
    ] = Path("plan.yaml"),
) -> None:
    """Write a commented plan that runs as it is, to begin your own with."""
    from runners.planning.plan_reading import write_template

    write_template(file)
    name = shlex.quote(str(file))
    print(f"wrote {file}; try it out: ringside check {name}; run it: ringside compare {name}")


@app.command()
def check(
    workload: Annotated[
        str,
        typer.Argument(
            help="A workload: a name, module:Class or path/to/file.py:Class; or a plan (YAML)."
        ),
    ],
    workload_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the workload.")
    ] = None,
    local_batch_size: Annotated[
        int, typer.Option(min=1, help="Samples per rank of the run; at most 4 are tried.")
    ] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and batches.")] = 1,
) -> None:
    """Try a workload, or every arm of a plan, on this machine without timing: what cannot work,
    with the line and the remedy.
    """
    from measurement.plans.plan_file import check_plan
    from runners.driver.rehearsal import rehearse_here
    from runners.planning.plan_reading import is_plan, read_plan
    from runners.planning.standalone_flags import settings

    if is_plan(workload):
        plan = read_plan(Path(workload))
        if plan.are_scripts:
            print_commands(plan)
            print("no problems found")
            return
    else:
        content = {
            "name": "check",
            "workload": workload,
            "workload_options": settings(workload_option, "--workload-option"),
            "local_batch_size": local_batch_size,
            "seed": seed,
            "world_size": 2,
            "device": "cpu",
            "baseline": "ddp",
            "arms": {"ddp": {"backend": "ddp"}},
        }
        plan = check_plan(content, source="command line")
    lines, is_ok = rehearse_here(plan)
    print(plan.workload, *lines, sep="\n  ")
    if not is_ok:
        raise typer.Exit(EXIT_FAILED)
    print("no problems found")


@app.command()
def doctor() -> None:
    """Show what is installed, built and reachable here, with the remedy for what is not."""
    from runners.doctor import diagnose, print_findings

    print_findings(diagnose())


@app.command()
def hosts(
    hostfile: Annotated[
        Path | None,
        typer.Argument(
            help="Hostfile (see hostfiles/), or a batch job's node file. [those of the job]"
        ),
    ] = None,
    listed: Annotated[
        str | None,
        typer.Option("-H", "--hosts", help="Hosts, such as host1:4,host2:4, in place of a file."),
    ] = None,
    world_size: Annotated[
        int | None, typer.Option("-np", "--np", help="Ranks to place. [as many as slots]")
    ] = None,
    reach: Annotated[
        bool, typer.Option("--reach/--no-reach", help="Look at each host, over ssh.")
    ] = True,
) -> None:
    """Show what a hostfile says, whether ranks can be started on its hosts, and which rank goes
    where.
    """
    from reports.formats import new_console
    from runners.hosts.preflight import named_hosts, show_hosts

    if not show_hosts(
        named_hosts(hostfile, listed), world_size=world_size, reach=reach, console=new_console()
    ):
        raise typer.Exit(EXIT_FAILED)


def main() -> None:
    """Entry point. A user's error is one message on stderr and exit code 2."""
    run_command(_serve)


def _serve() -> None:
    search_beside(Path.cwd())  # as ``python -m`` does
    app()


if __name__ == "__main__":
    main()
