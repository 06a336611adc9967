"""Proposes settings to try: Optuna's Gaussian process sampler explores, then the most promising are
measured again.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from measurement.errors import PlanError
from reports.tuning import Options, SearchedSetting, Trial, tried_sets

MISSING = (
    "'ringside tune' searches by Optuna, which is not installed; run: pip install 'ringside[tune]'"
)
STARTUP_TRIALS = 8
"""Random trials before the sampler has enough data."""
MAX_DRAWS = 20
"""Draws in search of new option sets. With few settings there may be none left."""


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
