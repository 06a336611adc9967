"""What each setting does, from few noisy trials: a Gaussian process over an arm's settings. Pure functions of trials.

The logarithm of a trial's speed-up over its default is the sum of an effect of each setting, a part of the combination's own, and
noise. An effect is 0 at the default and walks at random from value to value away from it, so that neighbours are alike. Noise is
that of the trial and that of the default which all trials of a launch share. The three sizes are unknown: each combination of a
grid is weighted by how well it explains all trials. Estimates are shrunk towards the default, so that the luckiest trial is not
taken for the best.
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
OWN = (0.0, 0.01, 0.04)
"""Of what a combination has of its own."""
NOISES = (0.003, 0.008, 0.015, 0.03, 0.05, 0.08, 0.15)
"""Of one arm in one launch."""
HALF_90 = 1.645


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
    """Weight, step and own size, solved observations, inverse covariance: of each combination of the grid."""

    def predict(self, options: Options, *, alone: bool = False) -> tuple[float, float]:
        """Mean and standard deviation of the log speed-up of an option set; ``alone``: without what is its own."""
        links = np.array([_link(self.settings, options, other) for other in self.tried])
        itself, same = _link(self.settings, options, options), np.array([options == other for other in self.tried], dtype=float)
        weights, means, variances = [], [], []
        for weight, step, own, solved, inverse in self.fits:
            part = 0.0 if alone or not options else own**2
            row = step**2 * links + part * same
            weights.append(weight)
            means.append(float(row @ solved))
            variances.append(max(step**2 * itself + part - float(row @ inverse @ row), 0.0))
        mean = float(np.average(means, weights=weights))
        variance = float(np.average(np.array(variances) + (np.array(means) - mean) ** 2, weights=weights))
        return mean, math.sqrt(variance)

    def estimate(self, options: Options, *, alone: bool = False) -> Estimate:
        """The speed-up with its 90% interval."""
        mean, deviation = self.predict(options, alone=alone)
        low, high = math.exp(mean - HALF_90 * deviation), math.exp(mean + HALF_90 * deviation)
        return Estimate(value=math.exp(mean), ci_low=low, ci_high=high)

    def table(self) -> list[SettingEffect]:
        """Every value of every setting by itself, the default included."""
        return [
            SettingEffect(option=one.option, value=value, ratio=self.estimate({one.option: value}, alone=True))
            for one in self.settings
            for value in one.values
        ]

    def best(self, *, margin: float) -> Options:
        """The option set to take: of those tried that are as good as the best within a margin, the one that sets least."""
        found = {0: (0.0, {})} | {number: (self.predict(one)[0], one) for number, one in enumerate(self.tried, 1)}
        top = max(mean for mean, _ in found.values())
        return min((one for one in found.values() if one[0] >= top - margin), key=lambda one: (len(one[1]), -one[0]))[1]

    def worth_repeating(self, number: int) -> list[Options]:
        """Option sets to measure once more: the most promising, and the sum of what each setting does best by itself."""
        lean = normal(self.settings, {one.option: self._best_value(one) for one in self.settings})
        known = [one for position, one in enumerate([lean, *self.tried]) if one and one not in [lean, *self.tried][:position]]
        return sorted(known, key=lambda one: -sum(self.predict(one)))[:number]

    def _best_value(self, setting: SearchedSetting) -> Any:
        """The value that does most, unless that may as well be nothing."""
        means = {number: self.predict({setting.option: value}, alone=True) for number, value in enumerate(setting.values)}
        best = max(means, key=lambda number: means[number][0])
        mean, deviation = means[best]
        return setting.values[best] if mean > deviation else setting.default


def fit_effects(settings: Sequence[SearchedSetting], trials: Sequence[Trial]) -> Effects:
    """Weigh the grid by the trials that were timed; there may be none."""
    timed = [trial for trial in trials if trial.log_ratio is not None]
    tried = [trial.options for trial in timed]
    logs = np.array([trial.log_ratio for trial in timed], dtype=np.float64)
    links = np.array([[_link(settings, a, b) for b in tried] for a in tried]).reshape(len(timed), len(timed))
    same = np.array([[bool(a) and a == b for b in tried] for a in tried], dtype=float).reshape(links.shape)
    shared = np.array([[a.launch == b.launch for b in timed] for a in timed], dtype=float).reshape(links.shape)
    found = []
    for step, own, noise in itertools.product(STEPS, OWN, NOISES):
        covariance = step**2 * links + own**2 * same + noise**2 * (np.eye(len(timed)) + shared)
        inverse = np.linalg.inv(covariance)
        score = -0.5 * (logs @ inverse @ logs + np.linalg.slogdet(covariance)[1])
        found.append((float(score), step, own, inverse @ logs, inverse))
    top = max(score for score, *_ in found)
    return Effects(settings=settings, tried=tried, fits=[(math.exp(one[0] - top), *one[1:]) for one in found if one[0] > top - 7])


def _link(settings: Sequence[SearchedSetting], a: Options, b: Options) -> float:
    """How many steps away from the defaults two option sets have in common."""
    return float(sum(_shared_steps(one, a, b) for one in settings if one.option in a and one.option in b))


def _shared_steps(setting: SearchedSetting, a: Options, b: Options) -> int:
    default = setting.values.index(setting.default)
    one, other = (setting.values.index(options[setting.option]) - default for options in (a, b))
    return min(abs(one), abs(other)) if one * other > 0 else 0
