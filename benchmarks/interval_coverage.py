"""Simulates how often intervals cover the true ratio of totals, how often verdicts err, and what
that costs. Nothing is timed.

    python benchmarks/interval_coverage.py [--replications 400] [--only PART]

PART is one of those below. All of it goes through ``reports.statistics.intervals.ratio_intervals``
as the reports use it, at 95%, on synthetic block times of which the truth is known: each arm, the
baseline and its control included, has its own noise of blocks (3.5%, Student's t with 5 degrees of
freedom) and of launches. The true ratio is that of expected times, stalls included.

- ``coverage``: scenario x 3, 5, 8 launches; two candidates, the first of which is unlike the
  others. Printed: coverage and mean half-width of its interval, the same of Student's t over its
  own launches alone, and how far the trimmed ratio is off.
- ``until-decided``: equal arms, launches until a verdict or 60 of them; how often there is a false
  verdict, and how many launches it takes to find a difference of 3%.
- ``budget``: five minutes, spent as the driver does; coverage and half-width beside those of the
  best fixed number of launches, in regimes of what a launch costs and how much rounds and launches
  vary.
- ``busy``: no round is quiet, others take a share of the cores, and load slows the candidate alone,
  by a power of 1 / (1 - share); how often it is called different though it is equal, and how often
  one that really is 2, 5 or 18 times slower is found.
- ``equivalence``: how often a candidate is called equivalent whose truth lies exactly at the
  threshold, how often one that is equal is called so, by the 90% interval and by the 95% one, and
  how often that one is called faster or slower.
- ``promise``: five minutes on a budget that end undecided, then launches as long as the last ones:
  how many launches more the report says it would take, beside how many it takes until the
  half-width reaches the estimate's distance, and until a verdict.
- ``speed``: a machine that is 25% faster in one launch of five, from launch to launch or for some
  on end, and a candidate that gains less from it; how often the report says that the ratio depends
  on it, and how often intervals hold the ratio of all time.
- ``candidates``: six equal candidates; how often one of them at least is called different, and how
  often 3% are found.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from reports.conclusions.ratios import decide, exceeds_margin, reach_of_load
from reports.parts_schema import Estimate
from reports.statistics.budget import error_share, next_analysis, to_decide
from reports.statistics.intervals import (
    Launches,
    ratio_by_speed,
    ratio_intervals,
)
from reports.statistics.student import RatioEstimate, t_interval
from tests.kit.budgets import REGIMES, Regime, fixed, interval_of, launch, on_a_budget
from tests.kit.ratios import equal_work, log_width

Array = npt.NDArray[np.float64]
CONFIDENCE = 0.95
BLOCK_NOISE = 0.035
ROUNDS = 40
MAX_LAUNCHES = 60
DIFFERENCE = 1.03
THRESHOLD = 0.01
BUDGET_S = 300.0
MAX_PROMISED = 60
"""Launches: longer promises are not followed."""
FASTER, FAST_LAUNCHES, LAUNCH_NOISE = math.log(1.25), 0.2, 0.035
"""A shared machine: by how much it is faster, as log; in which share of launches; how much launches
of an arm differ besides."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is true of the first candidate; the other arms have ``spread`` and ``drift`` alone."""

    name: str
    speed: float = 1.0
    spread: float = 0.005
    """Standard deviation of every arm's launches, as log."""
    own_spread: float | None = None
    """The first candidate's instead."""
    slow_launches: tuple[float, float] = (0.0, 0.0)
    """The share of its launches that are slower, and by how much."""
    stalls: tuple[float, float] = (0.0, 0.0)
    """The share of its blocks that stall, and the time that takes, in blocks."""
    drift: float = 0.0
    """Of the machine during a launch: a random walk that all arms share; its standard deviation at
    the end."""
    rounds: Sequence[int] = (ROUNDS,)
    """Of the launches, in turn: some may have been cut short."""

    @property
    def truth(self) -> float:
        """Return the ratio of totals that the first candidate has."""
        share, factor = self.slow_launches
        return (
            self.speed
            / (1 + self.stalls[0] * self.stalls[1])
            * math.exp(-share * math.log1p(factor))
        )


SCENARIOS = (
    Scenario(name="alike, launches agree", spread=0.0),
    Scenario(name="alike, launches vary by 1%", spread=0.01),
    Scenario(name="alike, launches vary by 3%", spread=0.03),
    Scenario(name="alike, 3% faster", speed=DIFFERENCE),
    Scenario(name="the machine drifts by 20%", drift=0.2),
    Scenario(name="launches of 40, 20 and 5 rounds", rounds=(40, 20, 5)),
    Scenario(name="its launches vary by 3%, others by 0.5%", own_spread=0.03),
    Scenario(name="its launches vary by 6%, others by 0.5%", own_spread=0.06),
    Scenario(name="stalls: 30% longer in 25% of blocks", stalls=(0.25, 0.3)),
    Scenario(name="stalls: twice as long in 25% of blocks", stalls=(0.25, 1.0)),
    Scenario(name="3% faster, stalls in 25% of blocks", speed=DIFFERENCE, stalls=(0.25, 0.3)),
    Scenario(name="rare: 3% faster, 3x as long in 5%", speed=DIFFERENCE, stalls=(0.05, 2.0)),
    Scenario(name="rare: 20% of its launches 6% slower", slow_launches=(0.2, 0.06)),
)
"""The last two are rarer than ten times in a launch: the report counts such stalls, and claims
nothing that hangs on them."""


def arm(launches: int, rounds: int, spread: float, random: np.random.Generator) -> Array:
    """Draw the seconds of one arm's blocks, float64 [launches, rounds]."""
    levels = np.exp(spread * random.standard_normal(launches) - spread**2 / 2)
    noise = 1 + BLOCK_NOISE * random.standard_t(5, (launches, rounds)) / math.sqrt(5 / 3)
    return np.asarray(levels[:, None] * np.maximum(noise, 0.2))


def comparison(
    scenario: Scenario, launches: int, candidates: int, random: np.random.Generator
) -> list[Launches]:
    """Draw what the reports hand over: candidates beside baseline and control, then the control
    beside the baseline.
    """
    others = [arm(launches, ROUNDS, scenario.spread, random) for _ in range(candidates + 1)]
    own = scenario.spread if scenario.own_spread is None else scenario.own_spread
    first = arm(launches, ROUNDS, own, random) / scenario.speed
    first *= 1 + scenario.stalls[1] * (random.random(first.shape) < scenario.stalls[0])
    first *= 1 + scenario.slow_launches[1] * (
        random.random((launches, 1)) < scenario.slow_launches[0]
    )
    walk = np.exp(
        scenario.drift
        * np.cumsum(random.standard_normal((launches, ROUNDS)), axis=1)
        / math.sqrt(ROUNDS)
    )
    *rest, base, control = (times * walk for times in others)
    cut = [scenario.rounds[launch % len(scenario.rounds)] for launch in range(launches)]
    tables = [_tables((times, base, control), cut) for times in (first * walk, *rest)]
    return [*tables, _tables((control, base), cut)]


def _tables(arms: Sequence[Array], cut: Sequence[int]) -> Launches:
    return [
        equal_work(*(times[launch, :rounds] for times in arms)) for launch, rounds in enumerate(cut)
    ]


def intervals(ratios: Sequence[Launches], share: float = 1.0) -> list[RatioEstimate]:
    """Return the reports' intervals."""
    found = ratio_intervals(
        ratios, confidence=CONFIDENCE, family=len(ratios) - 1, error_share=share
    )
    return [one for one in found if one is not None]


def bounds(one: RatioEstimate) -> tuple[float, float]:
    """Return both bounds."""
    assert one.bounds is not None
    return one.bounds


def t_of_launches(launches: Launches) -> tuple[float, float]:
    """Return Student's interval over the launches' log-ratios of totals, the textbook method for
    one ratio alone.
    """
    totals = np.array([np.nansum(table, axis=0) for table in launches])
    rates = np.log(totals[..., 0] / totals[..., 1])
    logs = rates[:, 0] - rates[:, 1:].mean(axis=1)
    half = (
        stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    )
    return float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))


def trimmed_log(launches: Launches) -> float:
    """Return the mean over launches of the blocks' log-ratios without the outer fifths."""
    means = []
    for table in launches:
        rates = np.log(table[..., 0] / table[..., 1])
        logs = rates[:, :1] - rates[:, 1:]
        means += [stats.trim_mean(log[np.isfinite(log)], 0.2) for log in logs.T]
    return float(np.mean(means))


def show_coverage(replications: int) -> None:
    """Print a line for each scenario and number of launches."""
    print(
        f"{'coverage of the true ratio of totals':<44}{'launches':>9}{'truth':>8}{'Ringside':>18}{'own t':>16}{'trimmed, bias':>16}"
    )
    for scenario in SCENARIOS:
        for launches in (3, 5, 8):
            random = np.random.default_rng([7, launches, sum(map(ord, scenario.name))])
            found = []
            for _ in range(replications):
                ratios = comparison(scenario, launches, 2, random)
                low, high = bounds(intervals(ratios)[0])
                own_low, own_high = t_of_launches(ratios[0])
                inside = (low <= scenario.truth <= high, own_low <= scenario.truth <= own_high)
                widths = (math.log(high / low) / 2, math.log(own_high / own_low) / 2)
                found.append((*inside, *widths, trimmed_log(ratios[0]) - math.log(scenario.truth)))
            ours, own, half, own_half, bias = np.mean(found, axis=0)
            print(
                f"{scenario.name:<44}{launches:>9}{scenario.truth:>8.3f}{ours:>9.1%} ±{half:6.2%}{own:>8.1%} ±{own_half:6.2%}"
                f"{bias:>+15.1%}",
                flush=True,
            )


def until_decided(
    scenario: Scenario, random: np.random.Generator, *, each_launch: bool
) -> tuple[str, int]:
    """Return the first candidate's verdict and the number of launches it took.

    Args:
        scenario: of the first candidate; there is one more, and the control, whose veto counts.
        random: draws.
        each_launch: look after each launch from the third on with the whole error, as Ringside did
            before.
    """
    ratios = comparison(scenario, MAX_LAUNCHES, 1, random)
    analyses: list[int] = []
    number = 3 if each_launch else next_analysis(analyses, launches=3)
    while True:
        number = min(number, MAX_LAUNCHES)
        analyses.append(number)
        share = 1.0 if each_launch else error_share(analyses, until_decided=True)
        candidate, control = intervals([launches[:number] for launches in ratios], share)
        verdict = decide(candidate, threshold=0.01, control=control)
        if verdict != "undecided" or number == MAX_LAUNCHES:
            return verdict, number
        number = number + 1 if each_launch else next_analysis(analyses, launches=3)


def show_until_decided(replications: int) -> None:
    """Print how often a verdict is false where there is no difference, and how soon one of 3% is
    found.
    """
    print(
        "\nuntil decided, 60 launches at most      false verdicts: looking as now, after each launch | 3% found, launches (median)"
    )
    for spread in (0.0, 0.01, 0.03, 0.06):
        counts = []
        for each_launch in (False, True):
            random = np.random.default_rng([8, int(spread * 1000)])
            same = Scenario(name="", spread=spread)
            counts.append(
                np.mean(
                    [
                        until_decided(same, random, each_launch=each_launch)[0]
                        in ("faster", "slower")
                        for _ in range(replications)
                    ]
                )
            )
        random = np.random.default_rng([9, int(spread * 1000)])
        faster = [
            until_decided(
                Scenario(name="", spread=spread, speed=DIFFERENCE), random, each_launch=False
            )
            for _ in range(replications)
        ]
        found = np.mean([verdict == "faster" for verdict, _ in faster])
        print(
            f"{'launches vary by ' + format(spread, '.0%'):<50}{counts[0]:>10.1%}{counts[1]:>20.1%} | "
            f"{found:>8.1%}, {np.median([number for _, number in faster]):.0f}",
            flush=True,
        )


def show_candidates(replications: int) -> None:
    """Print how often six equal candidates get a false verdict, and how often the first is found
    where it is 3% faster.
    """
    print(
        "\nsix candidates; any false verdict: together, each by itself | 3% found: together, each by itself"
    )
    for spread in (0.0, 0.01, 0.03):
        for launches in (4, 8):
            random = np.random.default_rng([10, launches, int(spread * 1000)])
            rates = []
            for speed in (1.0, DIFFERENCE):
                calls = []
                for _ in range(replications):
                    ratios = comparison(
                        Scenario(name="", spread=spread, speed=speed), launches, 6, random
                    )
                    together = intervals(ratios)[:-1]
                    alone = [
                        one
                        for one in ratio_intervals(ratios, confidence=CONFIDENCE, family=0)[:-1]
                        if one is not None
                    ]
                    counted = [
                        [decide(one, threshold=0.01) in ("faster", "slower") for one in found]
                        for found in (together, alone)
                    ]
                    calls.append([any(one) if speed == 1.0 else one[0] for one in counted])
                rates.append(np.mean(calls, axis=0))
            label = f"launches vary by {spread:.0%}, {launches} launches"
            print(
                f"{label:<50}{rates[0][0]:>10.1%}{rates[0][1]:>16.1%} | {rates[1][0]:>10.1%}{rates[1][1]:>16.1%}",
                flush=True,
            )


def show_equivalence(replications: int) -> None:
    """Print false and true verdicts of equivalence, and false ones of faster or slower, by any of
    several candidates.
    """
    print(
        "\nwithin 1%; one at the threshold called equivalent | equal ones called so: 90% interval, 95% | called faster or slower"
    )
    for candidates in (1, 4):
        for spread in (0.001, 0.003, 0.01, 0.03):
            for launches in (5, 8):
                random = np.random.default_rng([12, candidates, launches, int(spread * 1000)])
                rates = _equivalence_rates(candidates, spread, launches, random, replications)
                told = f"{rates[0]:>10.1%} | {rates[1]:>10.1%}{rates[2]:>8.1%} | {rates[3]:>8.1%}"
                print(
                    f"{f'{candidates} candidates, launches vary by {spread:.1%}, {launches}':<50}{told}",
                    flush=True,
                )


def _equivalence_rates(
    candidates: int, spread: float, launches: int, random: np.random.Generator, replications: int
) -> tuple[float, float, float, float]:
    """Any of ``candidates`` called equivalent at the threshold; the first of equals, by either
    interval; any called different.
    """
    at, equal, wide, different = [], [], [], []
    for number in range(replications):
        ratios = comparison(Scenario(name="", spread=spread), launches, candidates, random)
        edge = 1 + THRESHOLD if number % 2 else 1 - THRESHOLD
        shifted = [[_faster(table, edge) for table in one] for one in ratios[:-1]]
        at.append(
            any(
                decide(one, threshold=THRESHOLD) == "equivalent"
                for one in intervals([*shifted, ratios[-1]])[:-1]
            )
        )
        found = intervals(ratios)[:-1]
        equal.append(decide(found[0], threshold=THRESHOLD) == "equivalent")
        two_sided = Estimate(value=found[0].value, ci_low=found[0].ci_low, ci_high=found[0].ci_high)
        wide.append(decide(two_sided, threshold=THRESHOLD) == "equivalent")
        different.append(any(one.excludes(1.0) for one in found))
    return (
        float(np.mean(at)),
        float(np.mean(equal)),
        float(np.mean(wide)),
        float(np.mean(different)),
    )


def _faster(table: Array, factor: float) -> Array:
    """A launch's blocks, the candidate's so many times as fast."""
    return np.concatenate([table[:, :1] / [1.0, factor], table[:, 1:]], axis=1)


def show_budget(replications: int) -> None:
    """Print coverage and half-width on a budget, and how far that is from the best fixed choice for
    the same time.
    """
    print(
        "\n5 minutes; coverage, half-width, launches (mean), rounds (median) | best fixed: launches, rounds, half-width | ratio"
    )
    for regime in REGIMES:
        random = np.random.default_rng([13, sum(map(ord, regime.name))])
        spent = [on_a_budget(regime, BUDGET_S, random) for _ in range(replications)]
        found = [interval_of(launches) for launches in spent]
        covered = np.mean([not one.excludes(1.0) for one in found])
        half = float(np.mean([log_width(one) / 2 for one in found]))
        number = np.mean([len(launches) for launches in spent])
        rounds = np.median([launches[-1].shape[1] for launches in spent])
        best, best_number = best_fixed(regime, random, replications)
        best_rounds = int((BUDGET_S / best_number - regime.start_s) / regime.round_s)
        print(
            f"{regime.name:<32}{covered:>8.1%} ±{half:6.2%}{number:>7.1f}{rounds:>5.0f} | "
            f"{best_number:>4}{best_rounds:>5} ±{best:6.2%} | {half / best:.2f}",
            flush=True,
        )


def best_fixed(regime: Regime, random: np.random.Generator, replications: int) -> tuple[float, int]:
    """Return the least mean half-width of any number of equal launches in the same time, and that
    number.
    """
    most = int(BUDGET_S / (regime.start_s + regime.round_s))
    tried = sorted(
        {round(most**share) for share in np.linspace(math.log(3) / math.log(most), 1, 8)}
    )
    found = []
    for number in tried:
        drawn = [fixed(regime, number, BUDGET_S, random) for _ in range(replications)]
        halves = [log_width(interval_of(launches)) / 2 for launches in drawn if launches]
        found.append((float(np.mean(halves)), number))
    return min(found)


def show_promise(replications: int) -> None:
    """Print how often a promise of more launches is met within a factor of two, and within its
    range, by regime and effect.
    """
    print(
        "\nundecided after 5 minutes, promised; median promise / needed, launches more for the half-width: within a factor of two, "
        "in the range | for a verdict: within a factor of two"
    )
    for regime in REGIMES:
        for effect in (0.5, 0.8):
            random = np.random.default_rng([15, sum(map(ord, regime.name)), int(10 * effect)])
            half = float(
                np.mean(
                    [
                        log_width(interval_of(on_a_budget(regime, BUDGET_S, random))) / 2
                        for _ in range(20)
                    ]
                )
            )
            drawn = [promised(regime, effect * half, random) for _ in range(replications)]
            kept = [one for one in drawn if one is not None]
            if not kept:
                continue
            said, low, high, needed, verdict = np.array(kept).T
            met = [
                np.mean((said <= 2 * found) & (found <= 2 * said)) for found in (needed, verdict)
            ]
            told = (
                f"{len(kept) / len(drawn):>7.0%}{np.median(said):>7.0f} /{np.median(needed):>4.0f}"
            )
            inside = np.mean((np.floor(low) <= needed) & (needed <= np.ceil(high)))
            name = f"{regime.name}, {math.expm1(effect * half):.1%} slower"
            print(f"{name:<48}{told}{met[0]:>8.0%}{inside:>7.0%} |{met[1]:>7.0%}", flush=True)


def promised(
    regime: Regime, effect: float, random: np.random.Generator
) -> tuple[float, float, float, int, int] | None:
    """Launches more that an undecided comparison promises, their range, and those that it takes;
    None where nothing is promised.

    Args:
        regime: of launches.
        effect: by which the candidate's blocks take longer, as log.
        random: draws.

    Returns:
        The promise, its least and its most; launches more until the half-width reaches the distance
        of the promise's estimate from 1, and until the first verdict. Both are at most thrice the
        most that is promised.
    """
    launches = [_slower(one, effect) for one in on_a_budget(regime, BUDGET_S, random)]
    interval, done = interval_of(launches), len(launches)
    more = to_decide(interval, threshold=THRESHOLD, measured=done, launches=done)
    is_open = (
        decide(interval, threshold=THRESHOLD) == "undecided"
        and abs(interval.value - 1) >= THRESHOLD
    )
    if (
        not is_open
        or more is None
        or more.value is None
        or more.high is None
        or more.high > MAX_PROMISED
    ):
        return None
    said = max(math.ceil(more.value), 1)
    needed, verdict, most = 0, 0, 3 * max(math.ceil(more.high), said)
    while not (needed and verdict) and len(launches) - done < most:
        launches.append(_slower(launch(regime, launches[-1].shape[1], random), effect))
        found, number = interval_of(launches), len(launches) - done
        if not needed and log_width(found) / 2 <= abs(math.log(interval.value)):
            needed = number
        if not verdict and decide(found, threshold=THRESHOLD) != "undecided":
            verdict = number
    return said, more.low, more.high, needed or most, verdict or most


def _slower(blocks: Array, effect: float) -> Array:
    """A launch's seconds by arm, the candidate's longer by ``effect``."""
    return blocks * np.exp([[effect], [0.0], [0.0]])


def is_found_under_load(
    speed: float, share: float, power: float, random: np.random.Generator
) -> bool:
    """Whether the candidate gets a verdict of five launches, all under load that slows it alone."""
    slowed = 1 / (1 - share) ** power
    ratios = comparison(
        Scenario(name="", spread=0.03, drift=0.2, speed=speed / slowed), 5, 1, random
    )
    candidate, control = intervals(ratios)
    verdict = decide(candidate, threshold=0.01, control=control)
    return verdict in ("faster", "slower") and exceeds_margin(
        candidate, reach_of_load(share, control)
    )


def show_busy(replications: int) -> None:
    """Print how often load alone makes a verdict, by how unlike it slows arms, and how often a true
    difference gets one.
    """
    print(
        "\nno round is quiet; equal, slowed by load alone to the power of 0, 1, 1.5, 2, 3 | really slower by 2, 5, 18, 100 times"
    )
    for share in (0.15, 0.3, 0.5, 0.66, 0.8):
        random = np.random.default_rng([11, int(share * 100)])
        cases = [
            *((1.0, power) for power in (0, 1, 1.5, 2, 3)),
            *((1 / times, 0.0) for times in (2, 5, 18, 100)),
        ]
        rates = [
            np.mean([is_found_under_load(speed, share, power, random) for _ in range(replications)])
            for speed, power in cases
        ]
        told = [f"{rate:8.1%}" for rate in rates]
        print(f"others take {share:<18.0%}{''.join(told[:5])} |{''.join(told[5:])}", flush=True)


def show_speed(replications: int) -> None:
    """Print how often a ratio is said to move with the machine's speed, and how often its interval
    holds that of all time.
    """
    print(
        "\nthe machine is faster by 25% in a launch of five; said to depend on it | the interval holds the ratio of all time: "
        "of all, of those without a word of it"
    )
    for share in (0.0, 0.7):
        for alike in (0.0, 0.43):
            for launches in (5, 8, 12, 20):
                random = np.random.default_rng([16, launches, int(100 * share), int(100 * alike)])
                said, held = np.array(
                    [moved(launches, share, alike, random) for _ in range(replications)]
                ).T
                name = (
                    f"gains {1 - share:.0%} of it, neighbours alike {alike:g}, {launches} launches"
                )
                print(
                    f"{name:<58}{said.mean():>7.0%} |{held.mean():>7.0%}{held[~said].mean():>7.0%}",
                    flush=True,
                )


def moved(
    launches: int, share: float, alike: float, random: np.random.Generator
) -> tuple[bool, bool]:
    """Whether a ratio is said to depend on the speed, and whether its interval holds the one of all
    time.

    Args:
        launches: of the comparison.
        share: of what the machine gains, that the candidate does not; 0: it gains as much as the
            others.
        alike: correlation of a launch's speed with that of the next.
        random: draws.
    """
    fast = np.empty(launches, dtype=bool)
    fast[0] = random.random() < FAST_LAUNCHES
    for number in range(1, launches):
        fast[number] = (
            fast[number - 1] if random.random() < alike else random.random() < FAST_LAUNCHES
        )
    candidate, baseline, control = FASTER * fast + LAUNCH_NOISE * random.standard_normal(
        (3, launches)
    )
    candidate -= share * FASTER * fast
    found = t_interval(list(candidate - (baseline + control) / 2), confidence=CONFIDENCE)
    assert found is not None
    said = ratio_by_speed(candidate - baseline, control, confidence=CONFIDENCE)
    return said is not None, not found.excludes(-share * FASTER * FAST_LAUNCHES)


def main() -> None:
    """Run the simulations and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replications", type=int, default=400)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    parts = {
        "coverage": show_coverage,
        "until-decided": show_until_decided,
        "equivalence": show_equivalence,
        "candidates": show_candidates,
        "budget": show_budget,
        "promise": show_promise,
        "busy": show_busy,
        "speed": show_speed,
    }
    for name, show in parts.items():
        if name.startswith(given.only):
            show(given.replications)


if __name__ == "__main__":
    main()
