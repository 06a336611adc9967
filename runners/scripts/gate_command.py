"""``ringside gate COMMAND --base REVISION``: compares a pull request with its base for as many
minutes as the answer needs.

Each run stores in the user's cache how much launches of the command varied on this type of
processor. The number of minutes that a loss takes to be detected follows from the last runs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import BaseModel

from install.build_horovod import cache_root
from measurement.agent.ringside_agent.machine import fingerprint
from measurement.errors import PlanError
from measurement.files import read_text, write_whole
from runners.flags import Flag, FlagValues, percent_of, say, values_of
from runners.scripts import ab_command
from runners.scripts.ab_command import BY_NAME, AbOptions, Run, Try, flags_named, flags_with

if TYPE_CHECKING:
    from measurement.plans.plan import Plan
    from measurement.records.results import ResultsFolder
    from reports.schema import Comparison

EXAMPLES = "ringside gate 'torchrun --nproc-per-node 2 train.py' --base origin/main --slower 5%"
REPORTS = "reports=[html, pull-request, junit, bencher]"
MAX_KEPT = 20
"""Runs whose noise is kept."""
POWER = 1 + 1.2816 / 1.96
"""The allowed loss in half-widths, so that nine of ten pull requests without a change pass."""


class GateOptions(AbOptions):
    """Options of ``ringside gate`` in addition to those of ``ringside ab``."""

    base: str = "origin/main"
    """The revision that the pull request is compared with."""
    slower: str = "5%"
    """The loss that is not allowed: code 3 unless the loss is shown to be less."""


class Noise(BaseModel):
    """The noise of a run's launches and rounds."""

    start_s: float
    round_s: float
    round_variance: float
    launch_variance: float
    degrees: float


FLAGS: Sequence[Flag] = (
    Flag(
        "What",
        GateOptions,
        "command_a",
        is_argument=True,
        metavar="COMMAND",
        help="The command of both, in quotes.",
    ),
    Flag("What", GateOptions, "base"),
    Flag("What", GateOptions, "slower", metavar="PERCENT"),
    *flags_named(
        "assert-equal",
        "golden",
        "python",
        "samples-per-step",
        "iteration-ends",
        "hosts",
        "trackers",
    ),
    Flag(
        "Measuring",
        ab_command.Measurement,
        "minutes",
        default=None,
        help="Minutes to spend. [what the loss takes here, or 5]",
    ),
    *flags_named("output", "set", "resume-elsewhere"),
)


TEXT = (
    "Compare a pull request with its base: code 3 unless it is shown to be no slower, in the"
    " minutes that this takes here."
)


def run_given(run: Run, run_trial: Try, flags: FlagValues) -> None:
    """Print how many minutes it takes, refuse fewer, and compare two commits."""
    options = GateOptions(**values_of(flags, GateOptions))
    if options.command_a is None:
        raise PlanError(f"give a command in quotes: {EXAMPLES}")
    file = noise_file(options.command_a)
    minutes = minutes_to_spend(
        file, slower=options.slower, asked=values_of(flags, ab_command.Measurement).get("minutes")
    )
    ab = flags_with(
        flags,
        {
            "command-a": options.command_a,
            "name-a": "base",
            "name-b": "here",
            "commit-a": options.base,
            "commit-b": "HEAD",
            "minutes": minutes,
            "assert-not-slower": options.slower,
            "set": [REPORTS, *flags.get(BY_NAME["set"], [])],
        },
    )

    def run_and_keep(plan: Plan, folder: ResultsFolder, **how: object) -> Comparison:
        comparison = run(plan, folder, **how)
        keep_noise(file, plan, folder)
        return comparison

    ab_command.run_given(run_and_keep, run_trial, ab)


def noise_file(command: str) -> Path:
    """The file with the noise of a command on this type of processor."""
    host = fingerprint()
    digest = hashlib.sha256(json.dumps([command, host["cpu"], host["cores"]]).encode()).hexdigest()[
        :16
    ]
    return cache_root().with_name("noise") / f"{digest}.json"


def minutes_to_spend(file: Path, *, slower: str, asked: float | None) -> float:
    """Return the minutes that are asked for, or that the loss takes here, and print the latter.

    Raises:
        PlanError: fewer are asked for than it takes.
    """
    share = percent_of(slower, flag="--slower") / 100
    earlier = [Noise(**noise) for noise in kept_noise(file)]
    if not earlier:
        say(
            "nothing is known of this runner: this run may not detect the loss, and shows how long"
            " the next takes"
        )
        return asked or 5.0
    needed = minutes_for(earlier, slower=share)
    runs = f"by the last {len(earlier)} runs of this command on this runner"
    if needed is None or (asked is not None and asked < needed):
        takes = "more than a day" if needed is None else f"{math.ceil(needed)} minutes"
        raise PlanError(
            f"to detect a loss of {slower} takes {takes}, {runs}; give as many --minutes, a larger"
            " --slower, or a quieter machine"
        )
    say(f"to detect a loss of {slower} takes {math.ceil(needed)} minutes, {runs}")
    return asked or float(math.ceil(needed))


def kept_noise(file: Path) -> list[dict[str, float]]:
    """Return the noise of earlier runs."""
    noises: list[dict[str, float]] = json.loads(read_text(file)) if file.is_file() else []
    return noises


def minutes_for(earlier: Sequence[Noise], *, slower: float) -> float | None:
    """Return the minutes in which nine of ten pull requests without a change are shown to lose
    less; None: more than a day.
    """
    from reports.statistics.budget import Cost, Spread, seconds_for

    degrees = [noise.degrees for noise in earlier]
    variances = [noise.launch_variance for noise in earlier]
    spread = Spread(
        round_variance=fmean(noise.round_variance for noise in earlier),
        launch_variance=fmean(variances, degrees) if any(degrees) else 0.0,
        degrees=sum(degrees),
    )
    cost = Cost(
        start_s=fmean(noise.start_s for noise in earlier),
        round_s=fmean(noise.round_s for noise in earlier),
    )
    seconds = (
        seconds_for(-math.log1p(-slower) / POWER, cost=cost, spread=spread) if slower else None
    )
    return None if seconds is None else seconds / 60


def keep_noise(file: Path, plan: Plan, folder: ResultsFolder) -> None:
    """Add the noise of a comparison's launches, if it is known."""
    from dataclasses import asdict

    from reports.launch_budget import noise_of

    if noise := noise_of(plan, folder):
        file.parent.mkdir(parents=True, exist_ok=True)
        noises = [*kept_noise(file), asdict(noise[0]) | asdict(noise[1])]
        write_whole(file, json.dumps(noises[-MAX_KEPT:]))
