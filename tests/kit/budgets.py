"""Comparisons on a budget of minutes, simulated: launches that take no time, of which all is known.

For tests and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.statistics.budget import PILOTS, Cost, choose, pilot, spread_of
from reports.statistics.intervals import Launches, launch_ratios, ratio_intervals
from reports.statistics.student import Array, RatioEstimate
from tests.kit.ratios import equal_work

SCALES = (1.5, 2.0)
"""Of a candidate against two copies of its baseline, and of one copy against the other."""


@dataclass(frozen=True)
class Regime:
    """What a launch costs, and how much log-ratios of a candidate vary."""

    name: str
    start_s: float
    round_s: float
    of_rounds: float
    """Standard deviation of one round's log-ratio within a launch."""
    of_launches: float

    @property
    def cost(self) -> Cost:
        """What a launch takes."""
        return Cost(start_s=self.start_s, round_s=self.round_s)


REGIMES = tuple(
    Regime(name, *numbers)
    for name, *numbers in [
        ("two cores, the default plan", 23, 0.8, 0.145, 0.04),
        ("a slow machine, the default plan", 40, 1.2, 0.14, 0.035),
        ("launches agree", 23, 0.8, 0.15, 0.0),
        ("launches alone differ", 5, 0.8, 0.03, 0.04),
        ("slow starts, short rounds", 30, 0.3, 0.02, 0.01),
        ("quick starts, noisy rounds", 3, 0.3, 0.10, 0.01),
        ("long rounds", 15, 4.0, 0.05, 0.02),
        ("launches differ by 8%", 10, 0.5, 0.10, 0.08),
    ]
)


def launch(regime: Regime, rounds: int, random: np.random.Generator) -> Array:
    """Seconds of blocks in one launch, float64 [3, rounds]: the candidate, the baseline and its
    control, all alike in truth."""
    scale = math.sqrt(SCALES[0])
    levels = regime.of_launches / scale * random.standard_normal((3, 1))
    noise = regime.of_rounds / scale * random.standard_t(5, (3, rounds)) / math.sqrt(5 / 3)
    return np.asarray(np.exp(levels) * np.maximum(1 + noise, 0.2))


def tables(launches: Sequence[Array]) -> list[Launches]:
    """What the reports make of them: the candidate against both copies, the control against the
    baseline."""
    return [
        [equal_work(*seconds) for seconds in launches],
        [equal_work(seconds[2], seconds[1]) for seconds in launches],
    ]


def interval_of(launches: Sequence[Array]) -> RatioEstimate:
    """The candidate's interval."""
    ratio = ratio_intervals(tables(launches), confidence=0.95, family=1)[0]
    assert ratio is not None
    return ratio


def on_a_budget(regime: Regime, budget_s: float, random: np.random.Generator) -> list[Array]:
    """Measure as a driver on a budget does. Starts take 10% more or less."""
    launches: list[Array] = []
    rounds: list[int] = []
    left_s = budget_s
    while True:
        if len(launches) < PILOTS:
            chosen = pilot(regime.cost, left_s=left_s, done=rounds, owed=PILOTS - len(rounds))
        else:
            pool = map(launch_ratios, tables(launches))
            spread = spread_of([ratios for ratios in pool if ratios is not None])
            further = choose(rounds, cost=regime.cost, spread=spread, left_s=left_s)
            if further is None:
                return launches
            chosen = further
        left_s -= regime.start_s * random.uniform(0.9, 1.1) + chosen.rounds * regime.round_s
        launches.append(launch(regime, chosen.rounds, random))
        rounds.append(chosen.rounds)


def fixed(
    regime: Regime, number: int, budget_s: float, random: np.random.Generator
) -> list[Array] | None:
    """Measure so many launches of equal length in the same time; None where they do not fit."""
    rounds = int((budget_s / number - regime.start_s) / regime.round_s)
    return [launch(regime, rounds, random) for _ in range(number)] if rounds >= 1 else None
