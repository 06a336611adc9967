"""Which settings to try next: Optuna's sampler by a Gaussian process explores, and the most promising are then measured again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from measurement.errors import PlanError
from reports.tuning import Options, SearchedSetting, Trial, TriedSet, tried_sets

MISSING = "'ringside tune' searches by Optuna, which is not installed; run: pip install 'ringside[tune]'"
STARTUP_TRIALS = 8
"""Random ones, before the sampler has something to go by."""
DEFAULTS = TriedSet(options={}, trials=0, failed=0, log_ratio=0.0, expected=0.0)
MAX_DRAWS = 20
"""In search of so many different sets; where settings are few, there may be none left."""


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


def sampler_name() -> str:
    """Return what a report says of the sampler."""
    return f"GPSampler of Optuna {optuna().__version__}"


def propose(settings: Sequence[SearchedSetting], trials: list[Trial], number: int, *, seed: int, repeat: bool) -> list[Options]:
    """Return so many different option sets to measure next, none of them the default; fewer where there are not so many.

    Args:
        settings: that are searched; at least one.
        trials: that were measured. The same ones bring the same proposals, so that a search can go on.
        number: wanted.
        seed: of the sampler.
        repeat: measure the most promising again, and the best without one of its options, in the place of new ones.
    """
    tried = tried_sets(trials)
    good = [one.options for one in tried if not one.failed]
    if not repeat or not good:
        return _explore(settings, trials, number, seed=seed)
    known = [one.options for one in tried]
    fewer = [one for one in one_fewer(settings, good[0]) if one and one not in known][: number // 2]
    return [*good[: number - len(fewer)], *fewer]


def best_of(trials: list[Trial], *, margin: float) -> Options:
    """Return the option set to take: of those as promising as the best, but for ``margin``, the one with fewest options."""
    found = [DEFAULTS, *(one for one in tried_sets(trials) if not one.failed)]
    least = max(one.expected for one in found) - margin
    return min((one for one in found if one.expected >= least), key=lambda one: (len(one.options), -one.expected)).options


def normal(settings: Sequence[SearchedSetting], values: Mapping[str, Any]) -> Options:
    """Return the options to set: those that are not at their defaults, and mean something beside the others."""
    chosen = {one.option: values.get(one.option, one.default) for one in settings}
    return {
        one.option: chosen[one.option]
        for one in settings
        if chosen[one.option] != one.default and all(chosen.get(name, value) == value for name, value in one.only_with.items())
    }


def one_fewer(settings: Sequence[SearchedSetting], options: Options) -> list[Options]:
    """Return an option set without each of its options in turn, and without what means nothing once that is left out."""
    return [normal(settings, {name: value for name, value in options.items() if name != left}) for left in options]


def study_of(settings: Sequence[SearchedSetting], trials: Sequence[Trial], *, seed: int) -> Any:
    """Return Optuna's study of the trials, in which what failed counts as the slowest. Values are numbered in their order."""
    library = optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", library.exceptions.ExperimentalWarning)
        sampler = library.samplers.GPSampler(seed=1000 * seed + len(trials), n_startup_trials=STARTUP_TRIALS)
    study = library.create_study(direction="maximize", sampler=sampler)
    logs = [0.0, *(trial.log_ratio for trial in trials if trial.log_ratio is not None)]
    for options, log in [(DEFAULTS.options, 0.0), *((trial.options, trial.log_ratio) for trial in trials)]:
        places = {one.option: one.values.index(options.get(one.option, one.default)) for one in settings}
        value = min(logs) if log is None else log
        study.add_trial(library.trial.create_trial(params=places, distributions=_space(settings), value=value))
    return study


def _space(settings: Sequence[SearchedSetting]) -> dict[str, Any]:
    return {one.option: optuna().distributions.IntDistribution(0, len(one.values) - 1) for one in settings}


def _explore(settings: Sequence[SearchedSetting], trials: Sequence[Trial], number: int, *, seed: int) -> list[Options]:
    """Ask the sampler for new sets, none that failed."""
    study, failed = study_of(settings, trials, seed=seed), [trial.options for trial in trials if trial.log_ratio is None]
    found: list[Options] = []
    for _ in range(MAX_DRAWS):
        drawn = study.ask(_space(settings)).params
        one = normal(settings, {name.option: name.values[drawn[name.option]] for name in settings})
        if one and one not in failed and one not in found:
            found.append(one)
        if len(found) == number:
            break
    return found
