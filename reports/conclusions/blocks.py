"""From steps to blocks, and from blocks to what ratios of totals are made of.

A block is timed by its slowest rank. Throughput is all samples over the sum of the blocks' times;
every table, chart, file and event takes it from here. A stall counts with all the time it took, as
it does for somebody who trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from measurement.plans.plan import Plan
from reports.conclusions.steps import Steps
from reports.parts_schema import Estimate
from reports.statistics.student import Array, log_interval

THROUGHPUT = ["samples", "block_s"]


def tabulate_blocks(steps: Steps) -> pd.DataFrame:
    """One row per launch, arm and block of the steps that count (``Steps.valid``).

    Returns:
        ``launch, arm, turn, round, block, kind, case, steps, samples`` (of all ranks), ``block_s``
        (the slowest rank's) and ``throughput_per_s``, in order of launch and turn. A block without
        samples or without time has no rate and is left out.
    """
    by_turn = steps.rank_blocks.groupby(["launch", "arm", "turn"], as_index=False)
    same = dict.fromkeys(["round", "block", "kind", "case"], "first")
    blocks = by_turn.agg(same | {"steps": "max", "samples": "sum", "step_s": "max"})
    blocks = blocks.rename(columns={"step_s": "block_s"})
    blocks = blocks[(blocks["samples"] > 0) & (blocks["block_s"] > 0)]
    blocks = blocks.assign(throughput_per_s=blocks["samples"] / blocks["block_s"])
    return blocks.sort_values(["launch", "turn", "arm"], ignore_index=True)


def copies_of_baseline(plan: Plan, candidate: str) -> list[str]:
    """The arms that a candidate's blocks are paired with: the control is a second copy of the
    baseline.
    """
    has_control = plan.measurement.control and plan.role(candidate) == "candidate"
    return [plan.baseline, plan.control_name] if has_control else [plan.baseline]


def total_tables(
    plan: Plan, blocks: pd.DataFrame, groups: Sequence[Sequence[str]], *, by_round: bool = False
) -> list[list[Array]]:
    """What the ratios of totals are made of: every arm's samples and seconds, round by round.

    Args:
        plan: for the mode.
        blocks: of one case, where there are several.
        groups: per ratio the arm, then those that it is compared with; the first of these must have
            a block.
        by_round: keep the rounds of arms that took no turns, which say how noisy blocks are.

    Returns:
        Per ratio and launch float64 [rounds, arms, 2] of samples and seconds. All ratios have the
        same rounds; NaN where an arm has no block.
    """
    sync = _paired_blocks(plan, blocks, by_round=by_round)
    names = list(dict.fromkeys(arm for arms in groups for arm in arms))
    places, row = np.unique(sync[["launch", "round"]].to_numpy(), axis=0, return_inverse=True)
    column = pd.Index(names).get_indexer(pd.Index(sync["arm"]))
    wide = np.full((len(places), len(names), len(THROUGHPUT)), np.nan)
    wide[row.reshape(-1)[column >= 0], column[column >= 0]] = sync.loc[column >= 0, THROUGHPUT]
    tables = []
    for arms in groups:
        table = wide[:, [names.index(arm) for arm in arms]]
        table[np.isnan(table[:, 1, 1]), 1:] = np.nan
        tables.append([table[places[:, 0] == launch] for launch in np.unique(places[:, 0])])
    return tables


def log_levels(blocks: pd.DataFrame, arms: Sequence[str]) -> Array:
    """Each launch's logarithm of an arm's total throughput, float64 [launches, arms]; NaN where an
    arm has no block.
    """
    sync = blocks[blocks["kind"] == "sync"]
    sums = [
        sync.pivot_table(index="launch", columns="arm", values=name, aggfunc="sum")
        for name in THROUGHPUT
    ]
    samples, seconds = (
        table.reindex(columns=list(arms)).to_numpy(dtype=np.float64) for table in sums
    )
    return np.asarray(np.log(samples / seconds))


def _paired_blocks(plan: Plan, blocks: pd.DataFrame, *, by_round: bool = False) -> pd.DataFrame:
    """The synchronised blocks, one of each arm in a round; where arms took no turns a launch is
    one.
    """
    sync = blocks[blocks["kind"] == "sync"]
    if plan.measurement.mode != "interleaved" and not by_round:
        whole = sync.groupby(["launch", "arm"], as_index=False)[THROUGHPUT].sum()
        sync = whole.assign(round=0)
    return sync.drop_duplicates(["arm", "launch", "round"])


def totals(blocks: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Samples, seconds and throughput over the synchronised blocks that have the same keys, by
    these.
    """
    sums = blocks[blocks["kind"] == "sync"].groupby(list(keys))[THROUGHPUT].sum()
    return sums.assign(throughput_per_s=sums["samples"] / sums["block_s"])


def throughput_per_s(blocks: pd.DataFrame) -> float:
    """Samples per second over all these blocks together: synchronised ones of one arm, at least one
    (``tabulate_blocks``).
    """
    samples, seconds = blocks[THROUGHPUT].sum()
    return float(samples / seconds)


def throughput_interval(blocks: pd.DataFrame, *, confidence: float) -> Estimate:
    """``throughput_per_s`` with Student's interval over launches, of what each adds to the
    logarithm of a ratio of sums.

    That is Cochran's variance of a ratio (Sampling Techniques, 1977, section 6.4), so that a longer
    launch weighs more.
    """
    sums = blocks.groupby("launch")[THROUGHPUT].sum()
    shares = sums / sums.sum()
    influence = len(sums) * (shares["samples"] - shares["block_s"])
    return log_interval(throughput_per_s(blocks), influence, confidence=confidence)


def columns(table: pd.DataFrame, names: Sequence[str]) -> dict[str, list[Any]]:
    """A table as plain lists, for storing; what is missing is None."""
    return {
        name: table[name].astype(object).where(table[name].notna(), None).tolist() for name in names
    }
