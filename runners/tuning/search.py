"""The search itself: launches of each arm's default beside trials of its settings, all arms on one budget.

A launch is a comparison of its own in ``search/NNN``: plan, records and logs lie there. What was tried is read back from these
folders, so that a search that was interrupted goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from backends import Backend
from backends.search_space import Setting
from measurement.errors import LaunchError, PlanError
from measurement.plans.plan import Arm, Plan
from measurement.plans.plan_file import check_plan
from measurement.records.results import ResultsFolder
from reports.conclusions.blocks import total_tables
from reports.schema import Comparison
from reports.statistics.intervals import launch_ratios
from reports.tuning.effects import Effects, fit_effects
from reports.tuning.tuning_schema import DEFAULT, MATCHED, TUNED, Asked, Options, SearchedSetting, Trial
from runners.hosts.placement import planned_hosts
from runners.planning.arms import resolve_arm
from runners.planning.option_arms import MOST_ARMS
from runners.planning.workload import resolve_cases, resolve_workload
from runners.tuning.proposals import propose

EXPLORED = 0.6
"""Share of the budget that is spent on new settings; the rest measures the most promising again."""
MOST_TRIALS = 1000
LEAST_START_S = 15.0
"""What starting a launch takes at the least: of budgets that hold none."""
MATCHED_MIB = 25.0
"""MiB exchanged at once in matched arms, unless the plan fixes another number: DDP's default."""
Measure = Callable[[Plan, ResultsFolder], Comparison]
"""Runs a plan into a folder, or goes on with one."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A launch of the search that is done."""

    plan: Plan
    comparison: Comparison
    has_buffers: bool
    seconds: float


def next_launch(asked: Asked, seconds: Sequence[float], trials: int) -> tuple[int, bool] | None:
    """Return how many trials of each arm come next, and whether old ones are repeated; None: the budget is spent.

    ``seconds``: of the launches so far. ``trials``: of each arm so far.
    """
    most, limit_s = asked.trials or MOST_TRIALS, 60 * (asked.minutes or math.inf)
    if trials >= most or (seconds and sum(seconds) + max(seconds) > limit_s):
        return None
    return min(asked.at_once, most - trials), max(trials / most, sum(seconds) / limit_s) >= EXPLORED


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What fresh launches are to answer."""

    plan: Plan | None
    """None: one arm, and nothing better than its default was found."""
    names: Mapping[str, Mapping[str, str]]
    """By arm of the plan, the arms that are its ``tuned``, ``default`` and ``matched`` ones."""
    baseline: str
    """The arm of the plan that the others are held against."""
    effects: Mapping[str, Effects]
    best: Mapping[str, Options]
    """By arm, the option set to take: none where nothing better than the default was found."""


class Search:
    """Searches the settings of a plan's arms."""

    def __init__(self, plan: Plan, root: Path, asked: Asked) -> None:
        """Prepare a search; nothing is started.

        Raises:
            PlanError: there is nothing to search, or the budget is too small.
        """
        _require_tunable(plan)
        self.plan, self.root, self.asked = plan, root, asked
        setups = {name: resolve_arm(name, arm, plan) for name, arm in plan.arms.items()}
        if resolve_cases(plan, resolve_workload(plan.workload, plan.workload_options), setups):
            raise PlanError(f"plan '{plan.name}' cannot be tuned: '{plan.workload}' is a micro-benchmark, and trains nothing")
        self.backends: dict[str, Backend] = {name: setup.backend for name, setup in setups.items()}
        self.spaces = self._spaces(has_buffers=False)
        self.untuned = [name for name, space in self.spaces.items() if not space]
        self.spaces = {name: space for name, space in self.spaces.items() if space}
        if not self.spaces:
            raise PlanError(
                f"plan '{plan.name}' has no arm to tune: {', '.join(self.untuned)} state no setting that the plan leaves open; "
                "ddp and horovod state some, see docs/tuning.md"
            )
        if 2 * len(self.spaces) > MOST_ARMS:
            raise PlanError(f"plan '{plan.name}' has {len(self.spaces)} arms to tune, and {MOST_ARMS // 2} are the most")
        least = (plan.measurement.expected_launch_s + LEAST_START_S) / 60
        if asked.minutes is not None and asked.minutes < least:
            raise PlanError(
                f"--minutes {asked.minutes:g} is too little for one trial of each arm: a launch of this plan takes "
                f"{least:.1f} minutes or more; give at least that, or shorten measurement.seconds_per_launch"
            )
        self.launches: list[Launched] = []
        self.trials: dict[str, list[Trial]] = {name: [] for name in self.spaces}

    @property
    def seconds(self) -> list[float]:
        """Seconds of each launch so far."""
        return [one.seconds for one in self.launches]

    def run(self, measure: Measure) -> None:
        """Measure launch after launch until the budget is spent; those that lie in the folder are read.

        Raises:
            LaunchError: an arm fails with the plan's own settings.
        """
        while True:
            folder = ResultsFolder(self.root / "search" / f"{len(self.launches):03}")
            plan = folder.read_plan() if folder.plan_path.is_file() else self._next_plan()
            if plan is None:
                return
            done = _read_launch(folder)
            if done is None:
                measure(plan, folder)
                done = _read_launch(folder)
            if done is None:
                raise LaunchError(f"'{folder.root}' holds no whole launch; see its logs, and go on with -o {self.root}")
            self._note(done)

    def confirmation(self) -> Confirmation:
        """Return what fresh launches answer: of each arm its tuned, default and matched settings, those that are alike once."""
        arms: dict[str, Arm] = {}
        names: dict[str, dict[str, str]] = {}
        sizes, margin = self._matched_sizes(), self.plan.measurement.noise_threshold / 2
        effects = {name: fit_effects(space, self.trials[name]) for name, space in self.spaces.items()}
        best = {name: found.best(margin=margin) for name, found in effects.items()}
        for name in self.spaces:
            own = self.plan.arms[name]
            variants = {TUNED: _with(own, best[name]), DEFAULT: own, MATCHED: _with(own, sizes[name]) if sizes else None}
            names[name] = {}
            for ending, arm in variants.items():
                if arm is not None:
                    alike = (other for other in names[name].values() if arms[other] == arm)
                    names[name][ending] = next(alike, f"{name}-{ending}")
                    arms[names[name][ending]] = arm
        base = self.plan.baseline if self.plan.baseline in self.spaces else next(iter(self.spaces))
        about: dict[str, Any] = {"baseline": f"{base}-{TUNED}", "question": TUNED if len(self.spaces) > 1 else None}
        about["measurement"] = self._as_long_for_each(len(arms))
        made = _made(self.plan, f"{self.plan.name}-{TUNED}", arms, **about) if len(arms) > 1 else None
        return Confirmation(plan=made, names=names, baseline=base, effects=effects, best=best)

    def _as_long_for_each(self, arms: int) -> dict[str, Any]:
        """The plan's ``measurement``, as much longer as there are more arms. ``rounds`` and steps stay: they count for each arm."""
        settings, compared = self.plan.measurement.model_dump(mode="json"), len(self.plan.compared_arms())
        share = (compared + arms - len(self.plan.arms)) / compared
        return settings | {
            name: round(share * settings[name], 2) for name in ("minutes", "seconds_per_launch") if settings.get(name) is not None
        }

    def _spaces(self, *, has_buffers: bool) -> dict[str, list[SearchedSetting]]:
        stated = {"has_buffers": has_buffers, "several_hosts": len(planned_hosts(self.plan)) > 1}
        found = {}
        for name, backend in self.backends.items():
            arm = self.plan.arms[name]
            variables = self.plan.environment | arm.environment
            found[name] = open_settings(backend.search_space(**stated), backend, arm, variables, lossy=self.asked.lossy)
        return found

    def _next_plan(self) -> Plan | None:
        """The next launch, of each arm's default and trials; None where the budget is spent or nothing left to try."""
        wanted = next_launch(self.asked, self.seconds, max(map(len, self.trials.values())))
        if wanted is None:
            return None
        number, repeat = min(wanted[0], MOST_ARMS // len(self.spaces) - 1), wanted[1]
        arms: dict[str, Arm] = {}
        for name, space in self.spaces.items():
            own = self.plan.arms[name]
            arms[f"{name}-{DEFAULT}"] = own
            for trial, options in enumerate(propose(space, self.trials[name], number, seed=self.asked.seed, repeat=repeat), 1):
                arms[f"{name}-trial-{trial}"] = _with(own, options)
        if len(arms) == len(self.spaces):
            return None
        measure = self.plan.measurement
        each_s = measure.expected_launch_s / len(self.plan.compared_arms())
        lengths = {"rounds": measure.rounds, "steps_per_launch": measure.steps_per_launch}
        settings = measure.model_dump(mode="json") | dict.fromkeys(("minutes", "max_minutes")) | lengths
        settings |= {"control": False, "floor": False, "until_decided": False, "local_every": 0}
        settings |= {"rehearsal": "never", "launches": 1, "seconds_per_launch": each_s * len(arms)}
        seed = self.plan.seed + len(self.launches)  # another order of arms in each launch
        others = {"measurement": settings, "reports": ["json"], "seed": seed}
        return _made(self.plan, f"{self.plan.name}-search", arms, baseline=next(iter(arms)), question=None, **others)

    def _note(self, done: Launched) -> None:
        """Take in a launch; the first one tells whether the model has buffers."""
        for name in self.spaces:
            summary = done.comparison.arm(f"{name}-{DEFAULT}")
            if not self.launches and summary.status != "ok":
                why = summary.errors[0].message if summary.errors else "its gate did not pass"
                raise LaunchError(f"arm '{name}' cannot be tuned: with the plan's own settings it is {summary.status} ({why})")
        if not self.launches:
            spaces = self._spaces(has_buffers=done.has_buffers)
            self.spaces = {name: spaces[name] for name in self.spaces}
        for name in self.spaces:
            self.trials[name] += read_trials(done, name, fixed=self.plan.arms[name].options, launch=len(self.launches))
        self.launches.append(done)

    def _matched_sizes(self) -> dict[str, Options]:
        """By arm, the option that has it exchange as many MiB at once as the others; none with one arm, or fixed unlike numbers."""
        stated = {name: self.backends[name].search_space(has_buffers=False, several_hosts=False) for name in self.spaces}
        sizes = {name: next((one.option for one in space if one.is_size), None) for name, space in stated.items()}
        own = {name: self.plan.arms[name].options.get(size) for name, size in sizes.items() if size}
        fixed = {value for value in own.values() if value is not None}
        if len(fixed) > 1 or None in sizes.values() or len(sizes) < 2:
            return {}
        size = fixed.pop() if fixed else MATCHED_MIB
        return {name: {option: size} for name, option in sizes.items() if option}


def read_trials(done: Launched, arm: str, *, fixed: Options, launch: int) -> list[Trial]:
    """Return the trials of an arm in a launch, each held against the arm's own default of the same rounds."""
    trials = [one for one in done.comparison.arms if one.name.rpartition("-trial-")[0] == arm]
    pairs = [[one.name, f"{arm}-{DEFAULT}"] for one in trials if one.status == "ok"]
    tables = total_tables(done.plan, pd.DataFrame(done.comparison.block_table), pairs) if pairs else []
    logs = {pair[0]: launch_ratios(table) for pair, table in zip(pairs, tables, strict=True)}
    found = []
    for one in trials:
        ratio = logs.get(one.name)
        options = {name: value for name, value in one.options.items() if name not in fixed}
        log = float(ratio.logs.mean()) if ratio else None
        found.append(Trial(launch=launch, options=options, status=one.status, log_ratio=log))
    return found


def _read_launch(folder: ResultsFolder) -> Launched | None:
    """None unless every arm of the launch has a record and none was interrupted."""
    report = folder.root / "comparison.json"
    if not report.is_file():
        return None
    plan, records = folder.read_plan(), folder.records()
    if {record.arm for record in records} != set(plan.arms) or not all(record.complete for record in records):
        return None
    kept = [rank.kept_bytes.get("buffers", 0) for record in records for rank in record.ranks]
    return Launched(
        plan=plan,
        comparison=Comparison.model_validate_json(report.read_bytes()),
        has_buffers=any(kept),
        seconds=folder.read_manifest().seconds.get("total", 0.0),
    )


def open_settings(
    stated: Sequence[Setting], backend: Backend, arm: Arm, variables: Collection[str] = (), *, lossy: bool = False
) -> list[SearchedSetting]:
    """Return what of an arm may be searched: what its back end states, without what options or variables fix."""
    defaults, found = type(backend).Options(), []
    for one in stated:
        default = getattr(defaults, one.option)
        is_idle = any(arm.options.get(other, value) != value for other, value in one.only_with.items())
        if one.option in arm.options or one.variable in variables or (one.is_lossy and not lossy) or is_idle:
            continue
        values = list(one.values) if default in one.values else [default, *one.values]
        limits = {"only_with": dict(one.only_with), "is_lossy": one.is_lossy}
        found.append(SearchedSetting(option=one.option, values=values, default=default, **limits))
    return found


def _with(arm: Arm, options: Options) -> Arm:
    return arm.model_copy(update={"options": arm.options | options})


def _made(plan: Plan, name: str, arms: Mapping[str, Arm], **others: Any) -> Plan:
    """A plan like another, with other arms."""
    content = plan.model_dump(mode="json") | {"left_out": {}, "name": name}
    content["arms"] = {one: arm.model_dump(mode="json", exclude_defaults=True) for one, arm in arms.items()}
    return check_plan(content | others, source=name)


def _require_tunable(plan: Plan) -> None:
    refused = {
        "arms by command, whose settings lie in your scripts": plan.are_scripts,
        "training to the end, which has no short trials": plan.training is not None,
        "points; tune each in a plan of its own": bool(plan.points),
        "arms with work of their own": plan.has_own_work,
        "arms on real and on synthetic input; tune them on one": len({arm.input for arm in plan.arms.values()}) > 1,
        "measurement.mode 'separate'": plan.measurement.mode == "separate",
    }
    for what in (what for what, is_so in refused.items() if is_so):
        raise PlanError(f"plan '{plan.name}' cannot be tuned: it has {what}")
