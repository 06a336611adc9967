"""What comparisons of one plan, made one after another, say of each other.

Their launches are one long series.

    python benchmarks/series.py FOLDER [FOLDER ...] [--beside FOLDER [FOLDER ...]]

Printed of each candidate:

- the half-width of its interval, mean and range; and with ``--beside``, over that of as many
  comparisons made in turn with these, of any version of Ringside, with Student's interval of the
  logarithms;
- how many intervals hold the ratio of the whole series;
- its ratio in each quarter of the launches, by the speed of the control, which is no part of that
  ratio; and of each arm, how much longer a step with exchange takes there than one without;
- promises. From each launch on, as many as a comparison has are taken for one. Where that is
  undecided and promises a verdict, the launches after it are added one by one, the series' first
  after its last. Counted are those of which the half-width, or the verdict, took between half and
  twice the launches promised, and those whose range held the half-width's number. Neighbours share
  launches, so that counts of n are worth less than n.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd

from measurement.plans.plan import Plan
from measurement.records.results import ResultsFolder
from reports import conclude
from reports.conclusions.ratios import decide
from reports.conclusions.steps import log_levels, total_tables
from reports.schema import Comparison
from reports.statistics.budget import to_decide
from reports.statistics.intervals import ratio_intervals
from reports.statistics.student import Array, RatioEstimate, log_interval

QUARTERS = 4


@dataclass(frozen=True, kw_only=True)
class Series:
    """Comparisons of one plan with a control, and their launches in the order in which they were
    made.
    """

    plan: Plan
    comparisons: Sequence[Comparison]
    tables: Sequence[Sequence[Array]]
    """Of each candidate, then of the control, launch by launch: as ``total_tables`` has them."""
    levels: Array
    """Log throughput, float64 [launches, arms]: of the control, the baseline, and each
    candidate."""
    without: Array
    """Likewise of blocks without exchange; NaN where a launch has none."""

    @classmethod
    def of(cls, folders: Sequence[Path]) -> Series:
        """Read results folders."""
        plan = ResultsFolder(folders[0]).read_plan()
        candidates = [name for name, role in plan.roles().items() if role == "candidate"]
        groups = [
            *([name, plan.baseline, plan.control_name] for name in candidates),
            [plan.control_name, plan.baseline],
        ]
        found = [conclude(ResultsFolder(folder)) for folder in folders]
        blocks = [pd.DataFrame(one.block_table) for one in found]
        tables = [total_tables(plan, one, groups) for one in blocks]
        arms = [plan.control_name, plan.baseline, *candidates]
        alone = [one[one["kind"] == "local"].assign(kind="sync") for one in blocks]
        return cls(
            plan=plan,
            comparisons=found,
            tables=[
                [table for one in tables for table in one[number]] for number in range(len(groups))
            ],
            levels=np.concatenate([log_levels(one, arms) for one in blocks]),
            without=np.concatenate([log_levels(one, arms) for one in alone]),
        )

    @property
    def candidates(self) -> list[str]:
        return [
            result.candidate for result in self.comparisons[0].results if result.role == "candidate"
        ]

    def intervals(self, first: int, number: int) -> list[RatioEstimate]:
        """What so many launches from ``first`` on say of each candidate."""
        taken = [
            [tables[(first + one) % len(tables)] for one in range(number)] for tables in self.tables
        ]
        found = ratio_intervals(
            taken,
            confidence=self.plan.measurement.confidence,
            family=len(self.candidates),
        )
        return [one for one in found[:-1] if one is not None]


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A promise in launches, and how many it then took; None: not in the whole series."""

    said: int
    low: float
    high: float
    half_width: int | None
    verdict: int | None

    def is_met(self, took: int | None) -> bool:
        """Whether so many are within a factor of two of the promise."""
        return took is not None and took <= 2 * self.said and self.said <= 2 * took

    @property
    def is_in_range(self) -> bool:
        return self.half_width is not None and math.floor(self.low) <= self.half_width <= math.ceil(
            self.high
        )


def half_widths(folders: Sequence[Path]) -> Iterator[dict[str, float]]:
    """Of each comparison, by candidate; relative.

    Read as stored, since an earlier version may have written it.
    """
    for folder in folders:
        results = json.loads((folder / "comparison.json").read_text())["results"]
        candidates = [one for one in results if one["role"] == "candidate"]
        yield {
            one["candidate"]: math.expm1(math.log(one["ci_high"] / one["ci_low"]) / 2)
            for one in candidates
        }


def show_half_widths(folders: Sequence[Path], beside: Sequence[Path]) -> None:
    """Print them, and their ratio to those of other comparisons."""
    ours, theirs = (pd.DataFrame(half_widths(one)) for one in (folders, beside))
    for label, widths in (("half-width", ours), ("beside", theirs)):
        for name, column in widths.items():
            print(
                f"{label}, {name}: ±{column.mean():.1%} ({column.min():.1%} to {column.max():.1%}) of {len(column)}"
            )
    if len(ours) != len(theirs):
        return
    logs = np.log(ours / theirs)
    for name, column in {**logs, "all": logs.mean(axis="columns")}.items():
        found = log_interval(math.exp(column.mean()), column, confidence=0.95)
        low, high = found.bounds or (math.nan, math.nan)
        print(f"over those beside, {name}: {found.value:.2f} ({low:.2f} to {high:.2f})")


def show_ratios(series: Series) -> None:
    """Print the ratio of the whole series, how many intervals hold it, and what it is at low and
    high speed.
    """
    order = np.argsort(series.levels[:, 0])
    for number, (name, whole) in enumerate(
        zip(series.candidates, series.intervals(0, len(order)), strict=True)
    ):
        results = [one.result(name) for one in series.comparisons]
        held = sum(
            result.ratio is not None and not result.ratio.excludes(whole.value)
            for result in results
        )
        said = sum(result.by_speed is not None for result in results)
        ratios = series.levels[:, 2 + number] - series.levels[:, 1]
        quarters = ", ".join(
            f"{math.exp(ratios[part].mean()):.3f}" for part in np.array_split(order, QUARTERS)
        )
        print(
            f"{name}: {whole.value:.3f} in {len(order)} launches; {held} of {len(results)} intervals hold it; from the slowest "
            f"quarter of launches to the fastest {quarters}, which {said} of {len(results)} reports say"
        )


def show_exchange(series: Series) -> None:
    """Print what exchange adds to a step, at low and at high speed."""
    order, batch = np.argsort(series.levels[:, 0]), series.comparisons[0].global_batch_size
    added_ms = 1e3 * batch * (np.exp(-series.levels) - np.exp(-series.without))
    speeds = np.exp(series.levels[order[[0, -1]], 0])
    alike = np.corrcoef(series.levels[:-1, 0], series.levels[1:, 0])[0, 1]
    print(
        f"the control's launches: {speeds[0]:,.0f} to {speeds[1]:,.0f} samples/s; neighbours correlate by {alike:.2f}"
    )
    plan = series.plan
    for number, name in enumerate([plan.control_name, plan.baseline, *series.candidates]):
        quarters = ", ".join(
            f"{np.nanmean(added_ms[part, number]):.2f}" for part in np.array_split(order, QUARTERS)
        )
        print(f"ms of exchange exposed in a step of {name}, likewise: {quarters}")


def follow(series: Series, first: int, number: int, candidate: int) -> Promise | str:
    """What the launches after one comparison make of its promise; a word for what it says where it
    promises nothing.
    """
    begun, threshold = (
        series.intervals(first, number)[candidate],
        series.plan.measurement.noise_threshold,
    )
    if decide(begun, threshold=threshold) != "undecided":
        return "decided"
    more = to_decide(begun, threshold=threshold, measured=number, launches=number)
    left = len(series.levels) - number
    if (
        abs(begun.value - 1) < threshold
        or more is None
        or more.value is None
        or more.high is None
        or more.value > left / 2
    ):
        return "longer"
    half_width = verdict = None
    for added in range(1, left + 1):
        now = series.intervals(first, number + added)[candidate]
        assert now.bounds is not None
        if half_width is None and math.log(now.bounds[1] / now.bounds[0]) / 2 <= abs(
            math.log(begun.value)
        ):
            half_width = added
        if verdict is None and decide(now, threshold=threshold) != "undecided":
            verdict = added
    return Promise(
        said=max(math.ceil(more.value), 1),
        low=more.low,
        high=more.high,
        half_width=half_width,
        verdict=verdict,
    )


def show_promises(series: Series) -> None:
    """Print how many were met."""
    launches, number = len(series.levels), round(len(series.levels) / len(series.comparisons))
    found = [
        follow(series, first, number, one)
        for first in range(launches)
        for one in range(len(series.candidates))
    ]
    promises = [one for one in found if isinstance(one, Promise)]
    half_width, verdict = (
        sum(one.is_met(took(one)) for one in promises)
        for took in (attrgetter("half_width"), attrgetter("verdict"))
    )
    print(
        f"{len(found)} comparisons of {number} launches: {found.count('decided')} decided, {found.count('longer')} promise more "
        f"than half of the series, or nothing. Of {len(promises)} promises the half-width took that, within a factor of two, in "
        f"{half_width}, a verdict in {verdict}; the range held {sum(one.is_in_range for one in promises)}"
    )


def main() -> None:
    """Read the results and print a line for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders",
        type=Path,
        nargs="+",
        help="results of comparisons, in the order in which they were made",
    )
    parser.add_argument(
        "--beside",
        type=Path,
        nargs="+",
        default=[],
        help="results of others, made in turn with these",
    )
    given = parser.parse_args()
    show_half_widths(given.folders, given.beside)
    series = Series.of(given.folders)
    show_ratios(series)
    show_exchange(series)
    show_promises(series)


if __name__ == "__main__":
    main()
