"""``ringside run COMMAND``: makes a plan with the command as its single arm, whose report shows
where the step time goes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from measurement.errors import PlanError
from measurement.plans.arm import Arm
from measurement.plans.measuring import Measurement, ScriptSettings
from measurement.plans.plan import Plan
from runners.flags import (
    MINUTES,
    Flag,
    FlagValues,
    SessionOptions,
    command,
    command_to_repeat,
    session_flags,
    values_of,
)
from runners.scripts.ab_command import EXIT_FAILED, MAX_TRIED, Run, Try

if TYPE_CHECKING:
    from measurement.records.record import LaunchRecord

EXAMPLES = """ringside run 'torchrun --nproc-per-node 2 train.py'

ringside run 'torchrun --nproc-per-node 2 train.py' --explain"""
USUAL_MINUTES = 2.0


class RunOptions(SessionOptions):
    """Options of ``ringside run`` that are not in a plan."""

    command: str | None = None
    """The command, in quotes, such as 'torchrun --nproc-per-node 2 train.py'."""
    name: str | None = None
    """Name of the arm. Default: that of its script."""
    explain: bool = False
    """Time the command with settings that may be faster as well, one in each arm more, and say by
    how much."""


COMMAND, MEASURING = "Command", "Measuring"
_option, _arm, _measurement = (
    partial(Flag, COMMAND, RunOptions),
    partial(Flag, COMMAND, Arm),
    partial(Flag, MEASURING, Measurement),
)
FLAGS: Sequence[Flag] = (
    _option("command", is_argument=True, metavar="COMMAND"),
    _option("name"),
    _option("explain"),
    *(
        _arm(field)
        for field in (
            "directory",
            "python",
            "commit",
            "samples_per_step",
            "iteration_ends",
            "untimed",
        )
    ),
    Flag(MEASURING, Plan, "hosts", ("-H", "--hosts")),
    _measurement("minutes", default=None, help=f"{MINUTES} [{USUAL_MINUTES:g}]"),
    _measurement("launches", default=None),
    _measurement("steps_per_launch", ("--steps",)),
    Flag(MEASURING, ScriptSettings, "cpu"),
    Flag(MEASURING, ScriptSettings, "trackers"),
    Flag(MEASURING, ScriptSettings, "keep_files"),
    *session_flags(RunOptions, MEASURING),
)


def run_script(run: Run, run_trial: Try) -> Callable[..., None]:
    """Return the command for typer."""
    text = (
        "Say where the step time of one unmodified command goes: by phase and rank, what is"
        " avoidable, and what to try."
    )
    return command(partial(run_given, run, run_trial), FLAGS, text=text)


def run_given(run: Run, run_trial: Try, flags: FlagValues) -> None:
    """Make the plan, with ``--explain`` the arms to try, and run it."""
    from measurement.records.results import ResultsFolder, default_folder

    options = RunOptions(**values_of(flags, RunOptions))
    plan = plan_of(flags)
    if options.explain and plan.scripts.cpu:
        raise PlanError("--cpu says nothing of speed; leave --explain out")
    folder = ResultsFolder(options.output or default_folder(plan.name))
    tried: list[LaunchRecord] = []
    if folder.plan_path.is_file():
        plan = with_arms(plan, folder.read_plan().arms)
    elif options.explain:
        tried = run_trial(plan, folder)
        plan = with_arms_to_try(plan, tried)
    again = command_to_repeat("run", flags, folder.root)
    if not run(
        plan, folder, again=again, resume_elsewhere=options.resume_elsewhere, tried=tried
    ).is_ok:
        raise typer.Exit(EXIT_FAILED)


def plan_of(flags: FlagValues) -> Plan:
    """Return the plan of one command.

    Raises:
        PlanError, HostfileError: a flag or the command is not accepted.
    """
    from measurement.plans.plan_file import check_plan, overridden
    from runners.hosts.placement import with_hosts
    from runners.launchers.command_lines import read_command
    from runners.scripts.arm_names import name_of

    options = RunOptions(**values_of(flags, RunOptions))
    if options.command is None:
        raise PlanError(
            "give a command in quotes: ringside run 'torchrun --nproc-per-node 2 train.py'"
        )
    line = read_command(options.command)
    name = options.name or name_of(line) or "script"
    measured = values_of(flags, Measurement) or {"minutes": USUAL_MINUTES}
    content = {
        "name": name,
        "baseline": name,
        "arms": {name: {"command": options.command, **values_of(flags, Arm)}},
        "measurement": {"control": False, **measured},
        "scripts": values_of(flags, ScriptSettings),
        **values_of(flags, Plan),
    }
    return check_plan(with_hosts(overridden(content, options.settings)), source="ringside run")


def with_arms_to_try(plan: Plan, tried: Sequence[LaunchRecord]) -> Plan:
    """Return the plan with an arm for each setting that may be faster: the command with this
    setting.
    """
    from reports.scripts.profile import settings_to_try

    settings = list(settings_to_try(tried).items())[:MAX_TRIED]
    if not settings:
        print(
            "ringside: --explain has nothing to try: no setting is one that others are known to"
            " beat",
            file=sys.stderr,
        )
        return plan
    first = plan.arms[plan.baseline]
    arms = {
        f"{plan.baseline}+{name}-{value}": first.model_copy(update={"impose": {name: value}})
        for name, value in settings
    }
    return with_arms(plan, {**plan.arms, **arms})


def with_arms(plan: Plan, arms: Mapping[str, Arm]) -> Plan:
    """Return the plan with these arms, and a control if there are several."""
    measured = plan.measurement.model_copy(update={"control": len(arms) > 1})
    return plan.model_copy(update={"arms": dict(arms), "measurement": measured})
