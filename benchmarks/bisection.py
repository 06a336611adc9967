"""Simulates what ``ringside bisect`` names among 24 commits, one of which is slower, and where none
is. Nothing is timed.

    python benchmarks/bisection.py [--replications 200] [--minutes 60] [--slower 3]

The search is ``runners.scripts.bisect_command.search``, its intervals are
``reports.statistics.intervals`` as reports have them, in the regimes of ``tests/kit/budgets.py``
(launch costs and variances that were measured). Every state has launches of the best number of
rounds, until its minutes are spent. Printed for each regime, with 4%, 2% and nothing planted: how
often the right commit is named, how often another one, and the minutes that were spent. The rest
ended undecided.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from reports.statistics.budget import MAX_ROUNDS, MIN_ROUNDS, error_share
from reports.statistics.intervals import ratio_intervals
from reports.statistics.student import Array
from runners.scripts.bisect_command import Seen, confidence, judged, search
from tests.kit.budgets import REGIMES, Regime, launch, tables

LAST = 24
"""The good commit is number 0."""


class Commits:
    """Commits of which those from a certain one on are slower."""

    def __init__(
        self, regime: Regime, *, first: int, lost: float, slower: float, random: np.random.Generator
    ) -> None:
        self.regime, self.first, self.lost, self.random, self.threshold = (
            regime,
            first,
            lost,
            random,
            1 - slower / 2,
        )
        best = (
            math.sqrt(regime.start_s / regime.round_s)
            * regime.of_rounds
            / max(regime.of_launches, 1e-9)
        )
        self.rounds = int(min(max(best, MIN_ROUNDS), MAX_ROUNDS))
        self.launches: dict[int, list[Array]] = {}
        self.looks: dict[int, int] = {}

    def look(self, at: int, minutes: float) -> Seen:
        """Measure on until a commit has so many minutes, three launches at least."""
        own, each_s = (
            self.launches.setdefault(at, []),
            self.regime.start_s + self.rounds * self.regime.round_s,
        )
        while len(own) < 3 or (len(own) + 1) * each_s <= 60 * minutes:
            seconds = launch(self.regime, self.rounds, self.random)
            seconds[0] /= 1 - (self.lost if at >= self.first else 0)
            own.append(seconds)
        looks = self.looks[at] = self.looks.get(at, 0) + 1
        share = error_share(range(looks), until_decided=True)
        found = ratio_intervals(
            tables(own), confidence=confidence(LAST), family=1, error_share=share
        )[0]
        assert found is not None
        low, high = found.equivalence_low, found.equivalence_high
        return Seen(
            minutes=len(own) * each_s / 60,
            is_bad=judged(low, high, self.threshold),
            low=low,
            high=high,
        )


def show(regime: Regime, *, lost: float, minutes: float, slower: float, replications: int) -> None:
    """Print one line."""
    random = np.random.default_rng([69, int(1000 * lost), sum(map(ord, regime.name))])
    right, wrong, spent = 0, 0, []
    for number in range(replications):
        first = 1 + number % LAST
        commits, known = (
            Commits(regime, first=first, lost=lost, slower=slower, random=random),
            dict[int, Seen](),
        )
        good, bad = search(LAST, commits.look, known, minutes=minutes)
        is_named = bad is not None and bad - good == 1
        right += is_named and bad == first and lost > 0
        wrong += is_named and (bad != first or lost == 0)
        spent.append(sum(one.minutes for one in known.values()))
    print(
        f"{regime.name:34} {lost:5.0%} {right / replications:7.1%} {wrong / replications:7.1%} {np.mean(spent):8.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--slower", type=float, default=3, help="percent, as the command has it")
    given = parser.parse_args()
    print(f"{'regime':34} {'lost':>5} {'right':>7} {'wrong':>7} {'minutes':>8}")
    for regime in REGIMES:
        for lost in (0.04, 0.02, 0.0):
            show(
                regime,
                lost=lost,
                minutes=given.minutes,
                slower=given.slower / 100,
                replications=given.replications,
            )


if __name__ == "__main__":
    main()
