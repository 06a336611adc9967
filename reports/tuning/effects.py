"""What each setting does, from few noisy trials: a Gaussian process over an arm's settings. Pure functions of trials.

The logarithm of a trial's speed-up over its default is the sum of an effect of each setting, of what they do together, and noise.
An effect is 0 at the default and walks at random from value to value away from it, so that neighbours are alike. Noise is that of
the trial and that of the default which all trials of a launch share. The sizes of all are unknown: each combination of a grid is
weighted by how well it explains the trials. Estimates are shrunk towards the default, so that the luckiest trial is not taken for
the best.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reports.estimate import Estimate
from reports.tuning.tuning_schema import Options, SearchedSetting, SettingEffect, Trial

Array = npt.NDArray[np.float64]
STEPS = (0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.2, 0.5)
"""Standard deviations of an effect between neighbouring values."""
JOINT = (0.0, 0.25, 1.0)
"""How much larger than that is what two steps do together, beyond their sum."""
NOISES = (0.003, 0.008, 0.015, 0.03, 0.05, 0.08, 0.15)
"""Standard deviations of one arm in one launch."""
HALF_90 = 1.645
DRAWS, MOST_DRAWN = 400, 256
"""Draws, and promising option sets whose speed-ups are drawn together, to say what the best of them may be."""
MOST_SETS = 4096
"""Option sets that are looked through for promising ones."""


def normal(settings: Sequence[SearchedSetting], values: Mapping[str, Any]) -> Options:
    """The options to set: those that are not at their defaults, and mean something beside the others."""
    chosen = {one.option: values.get(one.option, one.default) for one in settings}
    return {
        one.option: chosen[one.option]
        for one in settings
        if chosen[one.option] != one.default and all(chosen.get(name, value) == value for name, value in one.only_with.items())
    }


@dataclass(frozen=True, kw_only=True)
class Effects:
    """What trials leave of an arm's settings."""

    settings: Sequence[SearchedSetting]
    tried: Sequence[Options]
    fits: Sequence[tuple[float, float, float, Array, Array]]
    """Weight, step, joint size, solved observations, inverse covariance: of each combination of the grid."""

    def predict(self, sets: Sequence[Options]) -> tuple[Array, Array]:
        """Mean and standard deviation of the log speed-up of option sets."""
        places = _places(self.settings, sets)
        links, own = _links(places, _places(self.settings, self.tried)), np.abs(places).sum(axis=1)
        weights = np.array([weight for weight, *_ in self.fits])
        means, variances = np.empty((2, len(weights), len(sets)))
        for number, (_, step, joint, solved, inverse) in enumerate(self.fits):
            rows = _covariance(links, step, joint)
            means[number] = rows @ solved
            variances[number] = _covariance(own, step, joint) - np.einsum("ij,jk,ik->i", rows, inverse, rows)
        mean = np.average(means, axis=0, weights=weights)
        variance = np.average(np.maximum(variances, 0.0) + (means - mean) ** 2, axis=0, weights=weights)
        return mean, np.sqrt(variance)

    def table(self) -> list[SettingEffect]:
        """Every value of every setting by itself, the default included."""
        alone = [(one.option, value) for one in self.settings for value in one.values]
        means, deviations = self.predict([{option: value} for option, value in alone])
        bounds = np.exp([means, means - HALF_90 * deviations, means + HALF_90 * deviations]).T.tolist()
        return [
            SettingEffect(option=option, value=value, ratio=Estimate(value=mean, ci_low=low, ci_high=high))
            for (option, value), (mean, low, high) in zip(alone, bounds, strict=True)
        ]

    def best(self, *, margin: float) -> Options:
        """The option set to take: the best of those tried, without what is not expected to add to it.

        ``margin``: of log speed-up, that is of no interest.
        """
        sets = [{}, *self.tried]
        means, _ = self.predict(sets)
        top = int(np.argmax(means))
        taken, least = sets[top], means[top] - margin
        while taken:
            fewer = one_fewer(taken)
            means, _ = self.predict(fewer)
            if means.max() < least:
                break
            taken = fewer[int(np.argmax(means))]
        return taken

    def left_to_find(self, taken: Options) -> Estimate:
        """Throughput of the fastest option set over that of ``taken``: median, and 5% and 95% of what the trials leave possible.

        Drawn from the Gaussian process, each combination of its grid by its weight; with a fixed seed.
        """
        random, sets = np.random.default_rng(0), [taken, {}, *self.promising(MOST_DRAWN, among=option_sets(self.settings))]
        places = _places(self.settings, sets)
        links, own = _links(places, _places(self.settings, self.tried)), _links(places, places)
        weights = np.array([weight for weight, *_ in self.fits])
        numbers, found = random.multinomial(DRAWS, weights / weights.sum()), []
        for number, (_, step, joint, solved, inverse) in zip(numbers, self.fits, strict=True):
            rows = _covariance(links, step, joint)
            sizes, axes = np.linalg.eigh(_covariance(own, step, joint) - rows @ inverse @ rows.T)
            spread = axes * np.sqrt(np.maximum(sizes, 0.0))
            logs = (rows @ solved)[:, None] + spread @ random.standard_normal((len(sets), number))
            found.append(logs.max(axis=0) - logs[0])
        low, middle, high = np.exp(np.quantile(np.concatenate(found), [0.05, 0.5, 0.95])).tolist()
        return Estimate(value=middle, ci_low=low, ci_high=high)

    def promising(self, number: int, *, among: Sequence[Options]) -> list[Options]:
        """Those of some option sets that may be the fastest: by what is expected of each and how little is known of it."""
        means, deviations = self.predict(among)
        return [among[place] for place in np.argsort(-(means + deviations), kind="stable")[:number]]


def option_sets(settings: Sequence[SearchedSetting]) -> list[Options]:
    """Every option set but the default, each once; of very many the first."""
    grid = itertools.islice(itertools.product(*(one.values for one in settings)), MOST_SETS)
    sets = [normal(settings, dict(zip((one.option for one in settings), values, strict=True))) for values in grid]
    return [dict(key) for key in dict.fromkeys(tuple(one.items()) for one in sets) if key]


def one_fewer(options: Options) -> list[Options]:
    """An option set without each of its options in turn."""
    return [{name: value for name, value in options.items() if name != left} for left in options]


def fit_effects(settings: Sequence[SearchedSetting], trials: Sequence[Trial]) -> Effects:
    """Weigh the grid by the trials that were timed; there may be none."""
    timed = [trial for trial in trials if trial.log_ratio is not None]
    places = _places(settings, [trial.options for trial in timed])
    links, launches = _links(places, places), np.array([trial.launch for trial in timed])
    logs = np.array([trial.log_ratio for trial in timed], dtype=np.float64)
    errors = np.eye(len(timed)) + (launches[:, None] == launches)
    found = []
    for step, joint, noise in itertools.product(STEPS, JOINT, NOISES):
        covariance = _covariance(links, step, joint) + noise**2 * errors
        inverse = np.linalg.inv(covariance)
        score = -0.5 * (logs @ inverse @ logs + np.linalg.slogdet(covariance)[1])
        found.append((float(score), step, joint, inverse @ logs, inverse))
    top = max(score for score, *_ in found)
    fits = [(math.exp(one[0] - top), *one[1:]) for one in found if one[0] > top - 7]
    return Effects(settings=settings, tried=[trial.options for trial in timed], fits=fits)


def _places(settings: Sequence[SearchedSetting], sets: Sequence[Options]) -> Array:
    """How many values each setting is away from its default, float64 [sets, settings]; negative below it."""
    found = [
        [one.values.index(own.get(one.option, one.default)) - one.values.index(one.default) for one in settings] for own in sets
    ]
    return np.array(found, dtype=np.float64).reshape(len(sets), len(settings))


def _links(one: Array, other: Array) -> Array:
    """How many steps away from the defaults each two option sets have in common."""
    above, below = (np.minimum(np.maximum(sign * one, 0)[:, None], np.maximum(sign * other, 0)) for sign in (1, -1))
    return np.asarray((above + below).sum(axis=-1))


def _covariance(links: Array, step: float, joint: float) -> Array:
    return step**2 * (links + joint * links**2 / 4)
