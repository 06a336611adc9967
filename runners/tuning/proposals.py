"""Which settings to try next: Optuna's TPE sampler explores, and the most promising are then measured again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from measurement.errors import PlanError
from reports.tuning.effects import fit_effects, normal, one_fewer, option_sets
from reports.tuning.tuning_schema import Options, SearchedSetting, Trial

MISSING = "'ringside tune' searches by Optuna, which is not installed; run: pip install 'ringside[tune]'"
STARTUP_TRIALS = 8
"""Random ones, before the sampler has something to go by."""
GUIDED = 1
"""Proposals of a launch that the model of all trials makes, in the place of the sampler."""
MOST_DRAWS = 60
"""In search of an option set that was not tried yet; where settings are few, there may be none left."""


def optuna() -> Any:
    """Return the library, silenced.

    Raises:
        PlanError: it is not installed.
    """
    try:
        import optuna as found
    except ImportError as error:
        raise PlanError(MISSING) from error
    found.logging.set_verbosity(found.logging.ERROR)
    return found


def sampler_name(seed: int) -> str:
    """Return what a report says of the sampler."""
    return f"TPESampler of Optuna {optuna().__version__}, {STARTUP_TRIALS} random trials first, seed {seed}"


def propose(settings: Sequence[SearchedSetting], trials: Sequence[Trial], number: int, *, seed: int, repeat: bool) -> list[Options]:
    """Return so many different option sets of an arm to measure next, none of them the default.

    Args:
        settings: that are searched; at least one.
        trials: that were measured. The same ones bring the same proposals, so that a search can go on.
        number: wanted. Fewer are returned where there are not so many.
        seed: of the whole search. Arms with the same settings so begin with the same option sets, and none is luckier.
        repeat: measure the most promising again, and the best without one of its options, in the place of new ones.
    """
    failed = [trial.options for trial in trials if trial.log_ratio is None]
    known = [one for one in option_sets(settings) if one not in failed]
    guided = GUIDED if number > GUIDED and len(trials) >= STARTUP_TRIALS else 0
    fresh = [] if repeat else _explore(settings, trials, number - guided, seed=seed)
    effects = fit_effects(settings, trials)
    old = [*effects.tried, *one_fewer(effects.best(margin=0.0))]
    among = [one for one in known if one not in fresh and (not repeat or one in old)]
    return [*fresh, *effects.promising(number - len(fresh), among=among)]


def _explore(settings: Sequence[SearchedSetting], trials: Sequence[Trial], number: int, *, seed: int) -> list[Options]:
    """Ask the sampler for option sets that were not tried; it is made anew of the trials, with a seed by their number."""
    library = optuna()
    space = {one.option: library.distributions.IntDistribution(0, len(one.values) - 1) for one in settings}
    sampler = library.samplers.TPESampler(seed=1000 * seed + len(trials), n_startup_trials=STARTUP_TRIALS)
    study = library.create_study(direction="maximize", sampler=sampler)
    states = library.trial.TrialState
    for trial in trials:
        chosen = {one.option: one.values.index(trial.options.get(one.option, one.default)) for one in settings}
        state = states.FAIL if trial.log_ratio is None else states.COMPLETE
        value = {} if trial.log_ratio is None else {"value": trial.log_ratio}
        study.add_trial(library.trial.create_trial(state=state, params=chosen, distributions=space, **value))
    tried, found = [trial.options for trial in trials], []
    for _ in range(MOST_DRAWS):
        drawn = study.ask(space).params
        one = normal(settings, {name.option: name.values[drawn[name.option]] for name in settings})
        if one and one not in tried and one not in found:
            found.append(one)
        if len(found) == number:
            break
    return found
