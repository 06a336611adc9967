"""Searches the settings of an arm: launches of its defaults beside trials, and the plans that
follow from them.

Optuna's Gaussian process sampler proposes what to try, then the most promising are measured again.
A launch is a separate comparison in ``search/NNN``, with plan, records and logs. Trials are read
back from these folders, so an interrupted search resumes where it stopped.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from backends import Backend
from backends.base import Setting
from measurement.errors import LaunchError, PlanError, unknown_name
from measurement.plans.plan import Plan
from measurement.plans.plan_file import check_plan
from measurement.plans.sections import Arm
from measurement.records.results import ResultsFolder
from reports.conclusions.steps import total_tables
from reports.schema import Comparison
from reports.statistics.intervals import launch_ratios
from reports.tuning import Options, SearchedSetting, SearchRequest, Trial, tried_sets
from runners.hosts.placement import planned_hosts
from runners.planning.arms import resolve_arm
from runners.planning.plan_reading import MAX_ARMS
from runners.planning.workload import resolve_cases, resolve_workload

MISSING = (
    "'ringside tune' searches by Optuna, which is not installed; run: pip install 'ringside[tune]'"
)
STARTUP_TRIALS = 8
"""Random trials before the sampler has enough data."""
MAX_DRAWS = 20
"""Draws in search of new option sets. With few settings there may be none left."""

EXPLORED = 0.6
"""Share of the budget for new settings; the rest measures the most promising again."""
Measure = Callable[[Plan, ResultsFolder], Comparison]
"""Runs a plan into a folder, or resumes it."""


class Search:
    """Searches the settings of one arm of a plan."""

    def __init__(self, plan: Plan, root: Path, request: SearchRequest) -> None:
        """Prepare a search; nothing is started.

        Raises:
            PlanError: there is nothing to search.
        """
        if request.arm not in plan.arms:
            remedy = "name one with --arm"
            raise PlanError(unknown_name("arm", request.arm, plan.arms, remedy=remedy))
        self.plan, self.root, self.request, self.name = plan, root, request, request.arm
        self.arm = plan.arms[self.name]
        self.backend = _backend_of(plan, self.name)
        self.trials: list[Trial] = []
        self.seconds: list[float] = []
        """What each launch took so far."""
        self.has_buffers = False
        """Whether the model has any, which the first launch shows."""
        if not self.settings:
            raise PlanError(
                f"arm '{self.name}' cannot be tuned: '{self.arm.backend}' states no setting that"
                " the plan leaves open; ddp, fsdp2 and horovod state some, see docs/tuning.md"
            )

    @property
    def settings(self) -> list[SearchedSetting]:
        """The settings to search."""
        stated = self.backend.search_space(
            has_buffers=self.has_buffers, several_hosts=len(planned_hosts(self.plan)) > 1
        )
        variables = self.plan.environment | self.arm.environment
        return open_settings(stated, self.backend, self.arm, variables, lossy=self.request.lossy)

    def run(self, measure: Measure) -> Options:
        """Measure launch after launch until the budget is spent; finished ones are read from the
        folder.

        Returns:
            The options to take: none if nothing is expected to be faster than the defaults.

        Raises:
            LaunchError: the arm fails with the plan's own settings.
        """
        while True:
            folder = ResultsFolder(self.root / "search" / f"{len(self.seconds):03}")
            plan = folder.read_plan() if folder.plan_path.is_file() else self._next_plan()
            if plan is None:
                return best_of(self.trials, margin=self.plan.measurement.noise_threshold / 2)
            if self._read_launch(folder):
                continue
            measure(plan, folder)
            if not self._read_launch(folder):
                raise LaunchError(
                    f"'{folder.root}' holds no whole launch; see its logs, and go on with -o"
                    f" {self.root}"
                )

    def confirmation(self, best: Options) -> Plan:
        """The plan of fresh launches that compare the best with the arm's defaults."""
        tuned = f"{self.name}-tuned"
        arms = {self.name: self.arm, tuned: self._with(best)}
        return made_plan(self.plan, "confirm", arms, baseline=self.name, question=tuned)

    def ablation(self, best: Options) -> Plan:
        """The plan of fresh launches that compare the best without each of its options with the
        best.
        """
        tuned = f"{self.name}-tuned"
        reduced = zip(best, leave_one_out(self.settings, best), strict=True)
        arms = {f"without-{option}": self._with(options) for option, options in reduced}
        arms = {tuned: self._with(best)} | arms
        return made_plan(self.plan, "without", arms, baseline=tuned, question=None)

    def tuned_plan(self, options: Options) -> Plan:
        """The user's plan with these options of the arm, for ``ringside compare``."""
        return made_plan(self.plan, "tuned", self.plan.arms | {self.name: self._with(options)})

    def _with(self, options: Options) -> Arm:
        return self.arm.model_copy(update={"options": self.arm.options | options})

    def _next_plan(self) -> Plan | None:
        """The next launch, of the defaults and trials; None if the budget is spent or nothing is
        left to try.
        """
        spent, limit_s = sum(self.seconds), 60 * self.request.minutes
        if self.seconds and spent + max(self.seconds) > limit_s:
            return None
        number, repeat = min(self.request.at_once, MAX_ARMS - 1), spent / limit_s >= EXPLORED
        proposals = propose(self.settings, self.trials, number, seed=self.plan.seed, repeat=repeat)
        if not proposals:
            return None
        trials = {
            f"trial-{number}": self._with(options) for number, options in enumerate(proposals, 1)
        }
        arms = {self.name: self.arm} | trials
        measure = self.plan.measurement
        each_s = measure.expected_launch_s / len(self.plan.compared_arms())
        lengths = {"rounds": measure.rounds, "steps_per_launch": measure.steps_per_launch}
        settings = (
            measure.model_dump(mode="json") | dict.fromkeys(("minutes", "max_minutes")) | lengths
        )
        settings |= {"control": False, "floor": False, "local_every": 0}
        settings |= {"rehearsal": "never", "launches": 1, "seconds_per_launch": each_s * len(arms)}
        changes = {"measurement": settings, "reports": ["json"], "question": None}
        seed = self.plan.seed + len(self.seconds)  # another order of arms in each launch
        return made_plan(self.plan, "search", arms, baseline=self.name, seed=seed, **changes)

    def _read_launch(self, folder: ResultsFolder) -> bool:
        """Take the trials of a launch, each compared with the arm's defaults in the same rounds;
        whether every arm has a record and none was interrupted.
        """
        report = folder.root / "comparison.json"
        if not report.is_file():
            return False
        plan, records = folder.read_plan(), folder.records()
        if {record.arm for record in records} != set(plan.arms) or not all(
            record.complete for record in records
        ):
            return False
        comparison = Comparison.model_validate_json(report.read_bytes())
        defaults = comparison.arm(self.name)
        if not self.seconds and defaults.status != "ok":
            why = defaults.errors[0].message if defaults.errors else "its gate did not pass"
            raise LaunchError(
                f"arm '{self.name}' cannot be tuned: with the plan's own settings it is"
                f" {defaults.status} ({why})"
            )
        blocks = pd.DataFrame(comparison.block_table)
        for arm in (arm for arm in comparison.arms if arm.name != self.name):
            log = None
            if arm.status == "ok":
                (totals,) = total_tables(plan, blocks, [[arm.name, self.name]])
                ratios = launch_ratios(totals)
                log = float(ratios.logs.mean()) if ratios else None
            options = {
                name: value for name, value in arm.options.items() if name not in self.arm.options
            }
            self.trials.append(
                Trial(launch=len(self.seconds), options=options, status=arm.status, log_ratio=log)
            )
        self.seconds.append(folder.read_manifest().seconds.get("total", 0.0))
        self.has_buffers |= any(
            rank.kept_bytes.get("buffers", 0) for record in records for rank in record.ranks
        )
        return True


def open_settings(
    stated: Sequence[Setting],
    backend: Backend,
    arm: Arm,
    variables: Collection[str] = (),
    *,
    lossy: bool = False,
) -> list[SearchedSetting]:
    """Return an arm's settings to search: those that its backend states, without those fixed by
    options or variables.
    """
    defaults, settings = type(backend).Options(), []
    for setting in stated:
        default = getattr(defaults, setting.option)
        is_idle = any(
            arm.options.get(other, value) != value for other, value in setting.only_with.items()
        )
        if (
            setting.option in arm.options
            or setting.variable in variables
            or (setting.is_lossy and not lossy)
            or is_idle
        ):
            continue
        settings.append(
            SearchedSetting(
                option=setting.option,
                values=[default] * (default not in setting.values) + list(setting.values),
                default=default,
                only_with=dict(setting.only_with),
                is_lossy=setting.is_lossy,
            )
        )
    return settings


def made_plan(plan: Plan, ending: str, arms: Mapping[str, Arm], **changes: Any) -> Plan:
    """Return a copy of a plan with other arms."""
    name = f"{plan.name.removesuffix(f'-{ending}')}-{ending}"
    content = plan.model_dump(mode="json") | {"left_out": {}, "name": name}
    content["arms"] = {
        arm_name: arm.model_dump(mode="json", exclude_defaults=True)
        for arm_name, arm in arms.items()
    }
    return check_plan(content | changes, source=name)


def _backend_of(plan: Plan, arm: str) -> Backend:
    """The arm's backend; raises a ``PlanError`` where a launch is no short trial of it."""
    is_refused = (
        plan.are_scripts
        or plan.training is not None
        or bool(plan.points)
        or plan.has_own_work
        or plan.batches is not None
        or plan.measurement.mode == "separate"
    )
    if not is_refused:
        setup = resolve_arm(arm, plan.arms[arm], plan)
        workload = resolve_workload(plan.workload, plan.workload_options)
        if not resolve_cases(plan, workload, {arm: setup}):
            return setup.backend
    raise PlanError(
        f"plan '{plan.name}' cannot be tuned: it needs arms that train one workload in blocks, one"
        " beside the other, without points; see docs/tuning.md"
    )


def optuna() -> Any:
    """Return the library, silenced.

    Raises:
        PlanError: it is not installed.
    """
    try:
        import optuna as library
    except ImportError as error:
        raise PlanError(MISSING) from error
    library.logging.set_verbosity(library.logging.ERROR)
    return library


def propose(
    settings: Sequence[SearchedSetting],
    trials: list[Trial],
    number: int,
    *,
    seed: int,
    repeat: bool,
) -> list[Options]:
    """Return up to ``number`` different option sets to measure next, none of them the default.

    Args:
        settings: searched settings; at least one.
        trials: measured trials. The same trials give the same proposals, so that a search can
            resume.
        number: how many sets to return, if there are as many.
        seed: of the sampler.
        repeat: measure the most promising again, and the best without one of its options, instead
            of new ones.
    """
    tried = tried_sets(trials)
    promising = [tried_set.options for tried_set in tried if not tried_set.failed]
    if not repeat or not promising:
        return _explore(settings, trials, number, seed=seed)
    measured = [{}, *(tried_set.options for tried_set in tried)]
    without_one = leave_one_out(settings, promising[0])
    reduced = [options for options in without_one if options not in measured][: number // 2]
    return [*promising[: number - len(reduced)], *reduced]


def best_of(trials: list[Trial], *, margin: float) -> Options:
    """Return the option set to take: among those within ``margin`` of the best, the one with fewest
    options.
    """
    candidates: list[tuple[Options, float]] = [({}, 0.0)]
    candidates += [
        (tried.options, tried.expected) for tried in tried_sets(trials) if not tried.failed
    ]
    least = max(expected for _, expected in candidates) - margin
    best = [(options, expected) for options, expected in candidates if expected >= least]
    return min(best, key=lambda candidate: (len(candidate[0]), -candidate[1]))[0]


def effective_options(settings: Sequence[SearchedSetting], values: Mapping[str, Any]) -> Options:
    """Return the options to set: those that are not at their defaults, and have an effect beside
    the others.
    """
    all_values = {
        setting.option: values.get(setting.option, setting.default) for setting in settings
    }
    return {
        setting.option: all_values[setting.option]
        for setting in settings
        if all_values[setting.option] != setting.default
        and all(all_values.get(name, value) == value for name, value in setting.only_with.items())
    }


def leave_one_out(settings: Sequence[SearchedSetting], options: Options) -> list[Options]:
    """Return the option set without each of its options in turn, and without options that then have
    no effect.
    """
    return [
        effective_options(settings, {name: options[name] for name in options if name != left_out})
        for left_out in options
    ]


def optuna_study(settings: Sequence[SearchedSetting], trials: Sequence[Trial], *, seed: int) -> Any:
    """Return Optuna's study of the trials.

    Failed ones count as the slowest; values are numbered in their order.
    """
    library = optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", library.exceptions.ExperimentalWarning)
        sampler = library.samplers.GPSampler(
            seed=1000 * seed + len(trials), n_startup_trials=STARTUP_TRIALS
        )
    study = library.create_study(direction="maximize", sampler=sampler)
    measured: list[tuple[Options, float | None]] = [({}, 0.0)]
    measured += [(trial.options, trial.log_ratio) for trial in trials]
    slowest = min(log for _, log in measured if log is not None)
    for options, log in measured:
        places = {
            setting.option: setting.values.index(options.get(setting.option, setting.default))
            for setting in settings
        }
        value = slowest if log is None else log
        study.add_trial(
            library.trial.create_trial(params=places, distributions=_space(settings), value=value)
        )
    return study


def _space(settings: Sequence[SearchedSetting]) -> dict[str, Any]:
    return {
        setting.option: optuna().distributions.IntDistribution(0, len(setting.values) - 1)
        for setting in settings
    }


def _explore(
    settings: Sequence[SearchedSetting], trials: Sequence[Trial], number: int, *, seed: int
) -> list[Options]:
    """Ask the sampler for new option sets, without those that failed."""
    study = optuna_study(settings, trials, seed=seed)
    failed = [trial.options for trial in trials if trial.log_ratio is None]
    proposals: list[Options] = []
    for _ in range(MAX_DRAWS):
        indices = study.ask(_space(settings)).params
        values = {setting.option: setting.values[indices[setting.option]] for setting in settings}
        options = effective_options(settings, values)
        if options and options not in [*failed, *proposals] and len(proposals) < number:
            proposals.append(options)
    return proposals
