"""``ringside gate COMMAND --base REVISION``: a pull request against its base, for as many minutes as the answer takes here.

Each gate leaves how much launches of the same command varied, on a processor of the same name, in the user's cache. From the last
ones it follows how many minutes a loss takes to be told from none. Nothing less is promised.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from install.cache import cache_root
from measurement.agent.ringside_agent.machine.host import fingerprint
from measurement.errors import PlanError
from measurement.files import write_whole
from runners.flags import Flag, Given, command, values_of
from runners.scripts import ab_command
from runners.scripts.ab_command import AbOptions, Run, Try, percent_of
from runners.scripts.bisect_command import AB

if TYPE_CHECKING:
    from measurement.plans.plan import Plan
    from measurement.records.results import ResultsFolder
    from reports.schema import Comparison
    from reports.statistics.budget import Spread

EXAMPLES = "ringside gate 'torchrun --nproc-per-node 2 train.py' --base origin/main --slower 5%"
REPORTS = "reports=[html, pull-request, junit, bencher]"
MAX_KEPT = 20
"""Runs whose noise is kept."""
POWER = 1 + 1.2816 / 1.96
"""Half-widths that a loss must have, so that of ten pull requests without a change nine pass."""


class GateOptions(AbOptions):
    """What ``ringside gate`` is asked besides what ``ringside ab`` is."""

    base: str = "origin/main"
    """The revision that the pull request is compared with."""
    slower: str = "5%"
    """The loss that must not be: code 3 unless it is shown to be less."""


class Noise(BaseModel):
    """What a run has shown of launches."""

    start_s: float
    round_s: float
    round_variance: float
    launch_variance: float
    degrees: float


FLAGS: Sequence[Flag] = (
    Flag("What", GateOptions, "command_a", is_argument=True, metavar="COMMAND", help="The command of both, in quotes."),
    Flag("What", GateOptions, "base"),
    Flag("What", GateOptions, "slower", metavar="PERCENT"),
    *(AB[f"--{name}"] for name in ("assert-equal", "golden", "python", "samples-per-step", "iteration-ends", "hosts", "trackers")),
    Flag("Measuring", ab_command.Measurement, "minutes", default=None, help="Minutes to spend. [what the loss takes here, or 5]"),
    *(AB[f"--{name}"] for name in ("output", "set", "resume-elsewhere")),
)


def gate_command(run: Run, hold_trial: Try) -> Callable[..., None]:
    """Return the command for typer."""
    text = "Hold a pull request against its base: code 3 unless it is shown to be no slower, in the minutes that this takes here."
    return command(partial(run_given, run, hold_trial), FLAGS, text=text)


def run_given(run: Run, hold_trial: Try, given: Given) -> None:
    """Say how many minutes it takes, refuse fewer, and compare two commits."""
    asked = GateOptions(**values_of(given, GateOptions))
    if asked.command_a is None:
        raise PlanError(f"give a command in quotes: {EXAMPLES}")
    percent_of(asked.slower, flag="--slower")
    file = noise_file(asked.command_a)
    minutes = minutes_to_spend(file, slower=asked.slower, given=values_of(given, ab_command.Measurement).get("minutes"))
    ab = {
        **{flag: value for flag, value in given.items() if flag in AB.values()},
        AB["--command-a"]: asked.command_a,
        AB["--name-a"]: "base",
        AB["--name-b"]: "here",
        AB["--commit-a"]: asked.base,
        AB["--commit-b"]: "HEAD",
        AB["--minutes"]: minutes,
        AB["--assert-not-slower"]: asked.slower,
        AB["--set"]: [REPORTS, *given.get(AB["--set"], [])],
    }

    def and_keep(plan: Plan, folder: ResultsFolder, **how: object) -> Comparison:
        comparison = run(plan, folder, **how)
        keep_noise(file, plan, folder)
        return comparison

    ab_command.run_given(and_keep, hold_trial, ab)


def noise_file(command: str) -> Path:
    """Where the noise of a command on a processor of this name is kept."""
    host = fingerprint()
    digest = hashlib.sha256(json.dumps([command, host["cpu"], host["cores"]]).encode()).hexdigest()[:16]
    return cache_root().with_name("noise") / f"{digest}.json"


def minutes_to_spend(file: Path, *, slower: str, given: float | None) -> float:
    """Return the minutes that are given, or that the loss takes here; says which these are.

    Raises:
        PlanError: fewer are given than it takes.
    """
    known = [Noise(**one) for one in json.loads(file.read_text(encoding="utf-8"))] if file.is_file() else []
    if not known:
        print(
            "ringside: nothing is known of this runner: this run promises nothing, and tells what the next takes", file=sys.stderr
        )
        return given or 5.0
    needed = minutes_for(known, slower=percent_of(slower, flag="--slower") / 100)
    runs = f"by the last {len(known)} runs of this command on this runner"
    if needed is None or (given is not None and given < needed):
        takes = "more than a day" if needed is None else f"{math.ceil(needed)} minutes"
        raise PlanError(f"to tell {slower} takes {takes}, {runs}; give as many --minutes, a larger --slower, or a quieter machine")
    print(f"ringside: to tell {slower} takes {math.ceil(needed)} minutes, {runs}", file=sys.stderr)
    return given or float(math.ceil(needed))


def minutes_for(known: Sequence[Noise], *, slower: float) -> float | None:
    """Return the minutes in which nine of ten pull requests without a change are shown to lose less; None: more than a day."""
    from reports.statistics.budget import Cost, seconds_for

    cost = Cost(start_s=_mean([one.start_s for one in known]), round_s=_mean([one.round_s for one in known]))
    seconds = seconds_for(-math.log1p(-slower) / POWER, cost=cost, spread=_pooled(known)) if slower else None
    return None if seconds is None else seconds / 60


def _pooled(known: Sequence[Noise]) -> Spread:
    from reports.statistics.budget import Spread

    degrees = sum(one.degrees for one in known)
    between = sum(one.degrees * one.launch_variance for one in known) / degrees if degrees else 0.0
    return Spread(round_variance=_mean([one.round_variance for one in known]), launch_variance=between, degrees=degrees)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def keep_noise(file: Path, plan: Plan, folder: ResultsFolder) -> None:
    """Add what a comparison has shown of launches, if it has."""
    from dataclasses import asdict

    from reports.launch_budget import noise_of

    if found := noise_of(plan, folder):
        earlier = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps([*earlier, asdict(found[0]) | asdict(found[1])][-MAX_KEPT:]))
