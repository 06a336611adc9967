"""Simulates what ``--against`` says of a repeat and of a planted regression. Nothing is timed.

    python benchmarks/regressions.py [--replications 400] [--minutes 10] [--planted 0.05] [--only
        REGIME] [--results FOLDER]

Every comparison spends its minutes on the best number of rounds (``reports.statistics.budget``), in
the regimes of ``tests/kit/budgets.py`` (launch costs and variances that were measured), or in that
of a stored result. Two of them are held against each other by ``reports.statistics.student`` and
judged by ``reports.against.judge``, as reports do, with two arms and 5% allowed. The machine's
speed drifts by 3% from launch to launch. Printed for the ratio, then for all three figures
together:

- ``repeat``: of two equal ones, how often "no regression beyond 5%", how often "regressed", how
  often code 3;
- ``planted``: how often "regressed" where the candidate has lost 5%, and how often code 3 with
  ``--allow-slower 0%``;
- ``days``: of two equal ones, how often code 3 where the machine's speed also differs from day to
  day by 2% or 5%.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from measurement.plans.plan import FLOOR
from measurement.records.results import ResultsFolder
from reports.against import judge
from reports.conclusions.ratios import find_spread
from reports.conclusions.steps import read_steps, tabulate_blocks
from reports.launch_budget import cost_of
from reports.statistics.budget import MAX_ROUNDS, MIN_ROUNDS, UNKNOWN
from reports.statistics.student import Array, Runs, separate_ratio
from tests.kit.budgets import REGIMES, Regime, launch

CONFIDENCE, ALLOWED, DRIFT = 0.95, 0.05, 0.03


@dataclass(frozen=True, kw_only=True)
class Result:
    """One comparison's logarithms by launch: throughput of candidate and baseline, and their
    ratio.
    """

    figures: Sequence[Array]

    @classmethod
    def draw(
        cls,
        regime: Regime,
        budget_s: float,
        random: np.random.Generator,
        *,
        lost: float = 0.0,
        day: float = 0.0,
    ) -> Result:
        """Draw one; the candidate has ``lost`` a share of its speed, and days differ by ``day``."""
        best = (
            math.sqrt(regime.start_s / regime.round_s)
            * regime.of_rounds
            / max(regime.of_launches, 1e-9)
        )
        rounds = int(min(max(best, MIN_ROUNDS), MAX_ROUNDS))
        number = max(int(budget_s / (regime.start_s + rounds * regime.round_s)), 2)
        totals = np.log(
            [rounds / launch(regime, rounds, random).sum(axis=1) for _ in range(number)]
        )
        drift = day * random.standard_normal() + DRIFT * random.standard_normal(number)
        candidate, baseline, control = (
            totals.T + drift + np.array([math.log1p(-lost), 0.0, 0.0])[:, None]
        )
        return cls(figures=(candidate, baseline, candidate - (baseline + control) / 2))


def verdicts(then: Result, now: Result, *, allowed: float = ALLOWED) -> list[tuple[str, bool]]:
    """Return what is said of each figure, the ratio last."""
    found = []
    for number, (before, after) in enumerate(zip(then.figures, now.figures, strict=True)):
        ours, theirs = (Runs(logs=logs, started=()) for logs in (after, before))
        change = separate_ratio(ours, theirs, confidence=CONFIDENCE, family=1 if number == 2 else 2)
        assert change is not None
        found.append(judge(change, allow_slower=allowed))
    return found


def show_regime(regime: Regime, budget_s: float, planted: float, replications: int) -> None:
    """Print one regime's line."""
    random = np.random.default_rng([21, sum(map(ord, regime.name))])
    equal = [_pair(regime, budget_s, random) for _ in range(replications)]
    worse = [_pair(regime, budget_s, random, lost=planted) for _ in range(replications)]
    same, lost, strict = (
        [verdicts(*pair) for pair in equal],
        [verdicts(*p) for p in worse],
        [verdicts(*p, allowed=0) for p in worse],
    )
    shown = [
        _share(one[2][0] == "no regression" for one in same),
        _share(one[2][0] == "regressed" for one in same),
        _share(one[2][1] for one in same),
        _share(all(said == "no regression" for said, _ in one) for one in same),
        _share(any(said == "regressed" for said, _ in one) for one in same),
        _share(any(beyond for _, beyond in one) for one in same),
        _share(one[2][0] == "regressed" for one in lost),
        _share(one[2][1] for one in strict),
        *(
            _share(
                any(beyond for _, beyond in verdicts(*_pair(regime, budget_s, random, day=day)))
                for _ in range(replications)
            )
            for day in (0.02, 0.05)
        ),
    ]
    number = np.mean([len(one.figures[2]) for pair in equal for one in pair])
    marks = "".join(
        f"{share:9.1%}{' |' if index in (2, 5, 7) else ''}" for index, share in enumerate(shown)
    )
    print(f"{regime.name:<32}{number:>5.0f} |{marks}", flush=True)


def _pair(
    regime: Regime,
    budget_s: float,
    random: np.random.Generator,
    *,
    lost: float = 0.0,
    day: float = 0.0,
) -> tuple[Result, Result]:
    return Result.draw(regime, budget_s, random, day=day), Result.draw(
        regime, budget_s, random, lost=lost, day=day
    )


def _share(found: object) -> float:
    return float(np.mean(list(found)))  # type: ignore[call-overload]


def stored_regime(folder: Path) -> Regime:
    """Return what a stored result's launches cost, and how much they vary."""
    stored = ResultsFolder(folder)
    plan, records = stored.read_plan(), stored.records()
    blocks = tabulate_blocks(read_steps(stored, records).valid(records).without_arm(FLOOR))
    spread, cost = find_spread(plan, blocks), cost_of(plan, records)
    if spread is UNKNOWN or cost is None:
        raise SystemExit(f"{folder} does not tell what a launch costs and how much launches vary")
    return Regime(
        name=folder.name,
        start_s=cost.start_s,
        round_s=cost.round_s,
        of_rounds=math.sqrt(spread.round_variance),
        of_launches=math.sqrt(spread.launch_variance),
    )


def main() -> None:
    """Run the simulations and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replications", type=int, default=400)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--planted", type=float, default=0.05)
    parser.add_argument("--only", default="")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    print(
        f"{given.minutes:g} minutes each; launches | ratio of a repeat: no regression, regressed, code 3 | all figures: the same | "
        f"planted {given.planted:.0%}, ratio: regressed, code 3 at 0% | days differ by 2%, 5%: code 3"
    )
    chosen = [regime for regime in REGIMES if regime.name.startswith(given.only)]
    for regime in [stored_regime(given.results)] if given.results else chosen:
        show_regime(regime, 60 * given.minutes, given.planted, given.replications)


if __name__ == "__main__":
    main()
