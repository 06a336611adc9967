"""Comparisons on a budget of minutes, simulated: launches that take no time, of which all is known.

For tests and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.statistics.budget import PILOTS, Cost, choose, pilot, spread_of
from reports.statistics.intervals import Launches, RatioEstimate, launch_ratios, ratio_intervals
from reports.statistics.student import Array
from tests.kit.ratios import equal_work

SCALES = (1.5, 2.0)
"""Of a candidate against two copies of its baseline, and of one copy against the other."""


@dataclass(frozen=True, kw_only=True)
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


REGIMES = (
    Regime(
        name="two cores, the default plan",
        start_s=23,
        round_s=0.8,
        of_rounds=0.145,
        of_launches=0.04,
    ),
    Regime(
        name="a slow machine, the default plan",
        start_s=40,
        round_s=1.2,
        of_rounds=0.14,
        of_launches=0.035,
    ),
    Regime(name="launches agree", start_s=23, round_s=0.8, of_rounds=0.15, of_launches=0.0),
    Regime(name="launches alone differ", start_s=5, round_s=0.8, of_rounds=0.03, of_launches=0.04),
    Regime(
        name="slow starts, short rounds", start_s=30, round_s=0.3, of_rounds=0.02, of_launches=0.01
    ),
    Regime(
        name="quick starts, noisy rounds", start_s=3, round_s=0.3, of_rounds=0.10, of_launches=0.01
    ),
    Regime(name="long rounds", start_s=15, round_s=4.0, of_rounds=0.05, of_launches=0.02),
    Regime(name="launches differ by 8%", start_s=10, round_s=0.5, of_rounds=0.10, of_launches=0.08),
)


def launch(regime: Regime, rounds: int, random: np.random.Generator) -> Array:
    """Seconds of blocks in one launch, float64 [3, rounds]: the candidate, the baseline and its
    control, all alike in truth."""
    levels = regime.of_launches / math.sqrt(SCALES[0]) * random.standard_normal((3, 1))
    noise = (
        regime.of_rounds
        / math.sqrt(SCALES[0])
        * random.standard_t(5, (3, rounds))
        / math.sqrt(5 / 3)
    )
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
