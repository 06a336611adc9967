"""What launches cost and how much they vary, and from this how long the next one shall be.

The driver asks before each launch of a plan with a budget of minutes. No ratio is looked at, see
``reports.statistics.budget``.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from measurement.plans.plan import FLOOR, Plan
from measurement.plans.sections import USUAL_LAUNCHES
from measurement.records.record import LaunchRecord
from measurement.records.results import ResultsFolder
from reports.conclusions.ratios import find_spread
from reports.conclusions.steps import read_steps, tabulate_blocks
from reports.conclusions.summaries import cases_of, launch_seconds, measuring_seconds
from reports.statistics.budget import (
    PILOTS,
    UNKNOWN,
    Cost,
    Spread,
    choose,
    pilot,
)


class LaunchLength(NamedTuple):
    """How long a launch shall be."""

    rounds: int | None
    """None: a pilot, which chooses while it runs."""
    launches: int
    """In all, as expected now."""


def choose_length(
    plan: Plan, folder: ResultsFolder, *, left_s: float, read_blocks: dict[int, pd.DataFrame]
) -> LaunchLength | None:
    """How long the next launch shall be.

    Args:
        plan: of the folder.
        folder: what was measured so far.
        left_s: seconds that are left of the budget.
        read_blocks: blocks by launch that were read before; what is read now is added.

    Returns:
        None: the budget is spent, or another launch would not make intervals narrower.
    """
    records = [record for record in folder.records() if record.complete]
    measured = rounds_of(records)
    rounds = [number for number in measured if number]
    cost = cost_of(plan, records)
    done, chosen = len(measured), None
    if cost is None:  # nothing is timed here
        return None if done >= PILOTS else LaunchLength(rounds=None, launches=USUAL_LAUNCHES)
    if done < PILOTS:
        chosen = pilot(cost, left_s=left_s, done=rounds, owed=PILOTS - done)
    elif len(rounds) > 1:
        done, spread = len(rounds), _spread(plan, folder, records, read_blocks)
        chosen = choose(rounds, cost=cost, spread=spread, left_s=left_s)
    if chosen is None:
        return None
    return LaunchLength(rounds=chosen.rounds, launches=done + chosen.launches)


def noise_of(plan: Plan, folder: ResultsFolder) -> tuple[Cost, Spread] | None:
    """What launches of a comparison cost and how much they vary, its control among them; None where
    too few were timed.
    """
    records = [record for record in folder.records() if record.complete]
    cost = cost_of(plan, records)
    spread = _spread(plan, folder, records, {}) if cost else UNKNOWN
    return None if cost is None or spread is UNKNOWN else (cost, spread)


def _spread(
    plan: Plan,
    folder: ResultsFolder,
    records: Sequence[LaunchRecord],
    read_blocks: dict[int, pd.DataFrame],
) -> Spread:
    """How much the ratios of these records vary."""
    launches = {record.launch for record in records}
    for launch in sorted(launches - read_blocks.keys()):
        of_launch = [record for record in records if record.launch == launch]
        read_blocks[launch] = tabulate_blocks(
            read_steps(folder, of_launch).valid(of_launch).without_arm(FLOOR)
        )
    wrong = {record.arm for record in records if record.status == "wrong"}
    blocks = pd.concat([read_blocks[launch] for launch in sorted(launches)], ignore_index=True)
    counted = blocks[~blocks["arm"].isin(wrong)]
    cases: list[str | None] = [case.name for case in cases_of(records)]
    return find_spread(plan, counted, cases=cases or [None]) if len(counted) else UNKNOWN


def rounds_of(records: Sequence[LaunchRecord]) -> list[int]:
    """The rounds of each launch, 0 where nothing was timed."""
    launches: dict[int, int] = {}
    for record in records:
        rounds = len({block.round for block in record.blocks if block.kind == "sync"})
        launches[record.launch] = max(launches.get(record.launch, 0), rounds)
    return [launches[launch] for launch in sorted(launches)]


def cost_of(plan: Plan, records: Sequence[LaunchRecord]) -> Cost | None:
    """What a launch costs besides its rounds, the median over launches, and what a round costs;
    None where nothing was timed.
    """
    measuring, whole = measuring_seconds(plan, records), launch_seconds(records)
    rounds = sum(rounds_of(records))
    spent = sum(measuring.values())
    if not rounds or not spent:
        return None
    starting = [
        max(whole[launch] - measuring[launch], 0.1) for launch in whole if measuring[launch]
    ]
    return Cost(start_s=statistics.median(starting), round_s=spent / rounds)
