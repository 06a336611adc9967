"""Simulates what ``ringside gate`` says of 200 pull requests on a noisy runner. Nothing is timed.

    python benchmarks/gate.py [--requests 200] [--slower 5] [--known 5]

Half of the pull requests change nothing, half lose as much as the gate refuses. In the regimes of
``tests/kit/budgets.py`` (launch costs and variances that were measured), some earlier runs of 10
minutes tell the gate how many minutes it takes (``runners.scripts.gate_command.minutes_for``). Each
pull request then has them, spent as the driver does, or five minutes all the same. Printed: the
minutes, alarms where nothing changed, and misses: losses that passed.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict

import numpy as np

from reports.statistics.budget import spread_of
from reports.statistics.intervals import launch_ratios
from runners.scripts.gate_command import Noise, minutes_for
from tests.kit.budgets import REGIMES, Regime, interval_of, on_a_budget, tables

EARLIER_S = 600.0


def noise(regime: Regime, random: np.random.Generator) -> Noise:
    """Measure as an earlier gate did, and keep what it has shown."""
    launches = on_a_budget(regime, EARLIER_S, random)
    pool = map(launch_ratios, tables(launches))
    return Noise(
        **asdict(regime.cost), **asdict(spread_of([one for one in pool if one is not None]))
    )


def passed(
    regime: Regime, minutes: float, random: np.random.Generator, *, lost: float, slower: float
) -> bool:
    """Whether one pull request is shown to lose less."""
    launches = on_a_budget(regime, 60 * minutes, random)
    for seconds in launches:
        seconds[0] /= 1 - lost
    low = interval_of(launches).ci_low
    return low is not None and low >= 1 - slower


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--slower", type=float, default=5, help="percent, as the command has it")
    parser.add_argument("--known", type=int, default=5, help="earlier runs")
    given = parser.parse_args()
    slower, half = given.slower / 100, given.requests // 2
    print(f"{'regime':34} {'minutes':>8} {'alarms':>7} {'misses':>7}")
    for regime in REGIMES:
        random = np.random.default_rng([70, sum(map(ord, regime.name))])
        needed = minutes_for([noise(regime, random) for _ in range(given.known)], slower=slower)
        for minutes in (needed, 5.0):
            if minutes is None:
                print(f"{regime.name:34} more than a day")
                continue
            spent = math.ceil(minutes)
            alarms = sum(
                not passed(regime, spent, random, lost=0, slower=slower) for _ in range(half)
            )
            misses = sum(
                passed(regime, spent, random, lost=slower, slower=slower) for _ in range(half)
            )
            print(
                f"{regime.name:34} {spent:8} {alarms / half:7.1%} {misses / half:7.1%}", flush=True
            )


if __name__ == "__main__":
    main()
