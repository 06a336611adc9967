"""``ringside run COMMAND``: makes a plan with the command as its single arm, whose report shows
where the step time goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from measurement.errors import PlanError
from measurement.plans.plan import Plan
from measurement.plans.sections import Arm, Measurement, ScriptSettings
from runners.flags import (
    MINUTES,
    Flag,
    FlagValues,
    SessionOptions,
    command_to_repeat,
    session_flags,
    values_of,
)
from runners.scripts.ab_command import (
    EXIT_FAILED,
    Run,
    Try,
    flags_named,
    name_of,
    with_arms_to_try,
)

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
_option = partial(Flag, COMMAND, RunOptions)
FLAGS: Sequence[Flag] = (
    _option("command", is_argument=True, metavar="COMMAND"),
    _option("name"),
    _option("explain"),
    *(
        Flag(COMMAND, Arm, field)
        for field in (
            "directory",
            "python",
            "commit",
            "samples_per_step",
            "iteration_ends",
            "untimed",
        )
    ),
    Flag(MEASURING, Measurement, "minutes", default=None, help=f"{MINUTES} [{USUAL_MINUTES:g}]"),
    *flags_named("hosts", "launches", "steps", "cpu", "trackers", "keep-files"),
    *session_flags(RunOptions, MEASURING),
)


TEXT = (
    "Say where the step time of one unmodified command goes: by phase and rank, what is"
    " avoidable, and what to try."
)


def run_given(run: Run, run_trial: Try, flags: FlagValues) -> None:
    """Make the plan, with ``--explain`` the arms to try, and run it."""
    from measurement.records.results import ResultsFolder, default_folder
    from reports.scripts.profile import settings_to_try

    options = RunOptions(**values_of(flags, RunOptions))
    plan = plan_of(flags)
    if options.explain and plan.scripts.cpu:
        raise PlanError("--cpu says nothing of speed; leave --explain out")
    folder = ResultsFolder(options.output or default_folder(plan.name))
    tried: list[LaunchRecord] = []
    if options.explain:
        plan, tried = with_arms_to_try(plan, folder, run_trial, settings_to_try)
        if len(plan.arms) > 1:
            measured = plan.measurement.model_copy(update={"control": True})
            plan = plan.model_copy(update={"measurement": measured})
    again = command_to_repeat(folder.root)
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
