"""From raw steps to blocks, and from blocks to what ratios of totals are made of.

Raw steps are summed up as they are read, in a thousandth of the space. Two tables are kept.
``rank_blocks`` has every rank's sums over each block; ``slowest`` has, of each step of a block, the
row of the rank that took longest, for which the others wait. Time and memory to make them are
linear in the steps.

A block is timed by its slowest rank. Throughput is all samples over the sum of the blocks' times;
every table, chart, file and event takes it from here. A stall counts with all the time it took, as
it does for somebody who trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from measurement.errors import RecordError
from measurement.plans.plan import Plan
from measurement.records.block import PHASES
from measurement.records.record import LaunchRecord, RankReport
from measurement.records.results import ResultsFolder
from measurement.records.step_tables import ROWS_AT_ONCE, joined
from reports.parts_schema import Estimate
from reports.statistics.student import Array, log_interval

PLACE = ["launch", "arm"]
TURN = [*PLACE, "turn"]
BLOCK = ["round", "block", "kind", "case"]
"""Constant within a ``turn`` of a launch and arm. ``case`` is null where the workload is
trained."""
TIMES = ["step_s", *(f"{phase}_s" for phase in PHASES)]
RANK_BLOCK_TYPES: dict[str, Any] = {
    "launch": "int64",
    "arm": str,
    "turn": "int64",
    "rank": "int64",
    "round": "int64",
    "block": "int64",
    "kind": str,
    "case": "string",
    "steps": "int64",
    "samples": "int64",
    **dict.fromkeys(TIMES, "float64"),
}
SLOWEST_TYPES: dict[str, Any] = {
    name: RANK_BLOCK_TYPES.get(name, "int64")
    for name in (*PLACE, "turn", "step", "rank", "kind", "case", *TIMES)
}
THROUGHPUT = ["samples", "block_s"]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps of any number of launches and arms."""

    rank_blocks: pd.DataFrame
    """Columns ``RANK_BLOCK_TYPES``: ``steps`` is their number, ``samples`` and times are sums. By
    launch, arm, turn and rank."""
    slowest: pd.DataFrame
    """Columns ``SLOWEST_TYPES``. By launch, arm, turn and step."""

    @classmethod
    def of(cls, raw: pd.DataFrame) -> Steps:
        """Sum up a table of raw steps, ``launch`` and ``arm`` besides
        ``measurement.records.step_tables.STEP_COLUMNS``, in any order.
        """
        return cls.joined([_sum_up(raw)] if len(raw) else [])

    @classmethod
    def joined(cls, parts: Iterable[Steps]) -> Steps:
        """Put parts together; a block may be spread over several of them."""
        all_parts, key = list(parts), [*TURN, "rank"]
        sums = joined([part.rank_blocks for part in all_parts], RANK_BLOCK_TYPES)
        if sums.duplicated(key).any():
            added = dict.fromkeys(["steps", "samples", *TIMES], "sum")
            sums = sums.groupby(key, as_index=False).agg(dict.fromkeys(BLOCK, "first") | added)
        slowest = joined([part.slowest for part in all_parts], SLOWEST_TYPES)
        slowest = slowest.sort_values(
            [*TURN, "step", "step_s", "rank"], ascending=[True] * 4 + [False, True]
        )
        slowest = slowest.drop_duplicates([*TURN, "step"])
        return cls(
            rank_blocks=sums[list(RANK_BLOCK_TYPES)].sort_values(key, ignore_index=True),
            slowest=slowest.reset_index(drop=True),
        )

    def valid(self, records: Sequence[LaunchRecord]) -> Steps:
        """Those whose launch is ok, whose arm was never wrong, and of blocks that every rank
        finished without a skipped step.
        """
        ranks = {
            (record.launch, record.arm, block.turn): record.world_size
            for record in counting(records)
            for block in record.blocks
            if not block.skipped_steps
        }
        steps = self.rank_blocks.groupby(TURN)["steps"].agg(["count", "min", "max"])
        is_whole = (steps["count"] == steps.index.map(ranks)) & (steps["min"] == steps["max"])
        whole = steps.index[is_whole].to_frame(index=False)
        return Steps(
            rank_blocks=self.rank_blocks.merge(whole, on=TURN),
            slowest=self.slowest.merge(whole, on=TURN),
        )

    def where(self, **values: Any) -> Steps:
        """Those with these values, such as ``arm="ddp", kind="sync"``; columns that both tables
        have.
        """
        selected = self
        for name, value in values.items():
            selected = Steps(
                **{which: table[table[name] == value] for which, table in vars(selected).items()}
            )
        return selected

    def without_arm(self, arm: str) -> Steps:
        """Those of all other arms."""
        return Steps(**{name: table[table["arm"] != arm] for name, table in vars(self).items()})

    def by_iteration(self) -> Steps:
        """These steps with themselves as samples, counted once for all ranks: of scripts whose
        samples could not be counted.
        """
        of_others = self.rank_blocks.duplicated(TURN)
        steps = self.rank_blocks["steps"].mask(of_others, 0)
        return replace(self, rank_blocks=self.rank_blocks.assign(samples=steps))

    def as_of(self, *, arm: str, launch: int) -> Steps:
        """These steps under the name of another arm and launch."""
        return Steps(
            **{name: table.assign(arm=arm, launch=launch) for name, table in vars(self).items()}
        )

    def __len__(self) -> int:
        """The number of steps, each counted once for all ranks."""
        return len(self.slowest)


def counting(records: Sequence[LaunchRecord]) -> list[LaunchRecord]:
    """Those whose launch is ok and whose arm was never wrong."""
    wrong = {record.arm for record in records if record.status == "wrong"}
    return [record for record in records if record.status == "ok" and record.arm not in wrong]


def first_ranks(records: Iterable[LaunchRecord]) -> list[RankReport]:
    """The reports of the ranks of the first launch that has any."""
    return next((record.ranks for record in records if record.ranks), [])


def measured_records(folder: ResultsFolder) -> list[LaunchRecord]:
    """The records of a folder; raises a ``RecordError`` where it holds none."""
    if records := folder.records():
        return records
    raise RecordError(
        f"'{folder.root}' holds no launch record yet; run 'ringside compare' with this folder first"
    )


def read_steps(folder: ResultsFolder, records: Sequence[LaunchRecord]) -> Steps:
    """All steps of the records, summed up part by part."""
    parts = (
        part.assign(launch=record.launch, arm=record.arm)
        for record in records
        for part in folder.parts_of_steps(record)
    )
    return Steps.joined(_sum_up(pd.concat(lot)) for lot in _in_lots(parts))


def _in_lots(parts: Iterable[pd.DataFrame]) -> Iterator[list[pd.DataFrame]]:
    """Yield small tables together, since summing up costs the same for each; a lot ends where it
    has ``ROWS_AT_ONCE`` rows.
    """
    lot: list[pd.DataFrame] = []
    for part in parts:
        if len(part):
            lot.append(part)
        if sum(map(len, lot)) >= ROWS_AT_ONCE:
            yield lot
            lot = []
    if lot:
        yield lot


def _sum_up(raw: pd.DataFrame) -> Steps:
    """Sum up raw steps of any launches and arms."""
    # sums of floats depend on their order
    order: list[Any] = [raw[name] for name in ("step", "rank", "turn", "launch")]
    raw = raw.iloc[np.lexsort([*order, pd.factorize(raw["arm"])[0]])].reset_index(drop=True)
    launch, arm, turn, rank = (
        np.append(True, np.diff(pd.factorize(raw[name])[0]) != 0) for name in (*TURN, "rank")
    )
    is_new_turn = launch | arm | turn
    first = np.flatnonzero(is_new_turn | rank)
    sums = {name: np.add.reduceat(raw[name].to_numpy(), first) for name in ("samples", *TIMES)}
    sums["steps"] = np.diff(np.append(first, len(raw)))
    rank_blocks = raw.iloc[first].assign(**sums)[list(RANK_BLOCK_TYPES)]
    # of equally long ones the lowest rank
    longest = raw["step_s"].groupby([is_new_turn.cumsum(), raw["step"].to_numpy()]).idxmax()
    slowest = raw.loc[longest, list(SLOWEST_TYPES)]
    return Steps(
        rank_blocks=rank_blocks.astype(RANK_BLOCK_TYPES), slowest=slowest.astype(SLOWEST_TYPES)
    )


def means_by_rank(rank_blocks: pd.DataFrame, names: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Mean seconds per step of these times: launches down, ranks across, NaN where a launch lacks a
    rank.
    """
    sums = rank_blocks.groupby(["launch", "rank"])[[*names, "steps"]].sum()
    means = sums.div(sums["steps"].where(sums["steps"] > 0), axis="index")
    return {name: means[name].unstack("rank") for name in names}


def tabulate_blocks(steps: Steps) -> pd.DataFrame:
    """One row per launch, arm and block of the steps that count (``Steps.valid``).

    Returns:
        ``launch, arm, turn, round, block, kind, case, steps, samples`` (of all ranks), ``block_s``
        (the slowest rank's) and ``throughput_per_s``, in order of launch and turn. A block without
        samples or without time has no rate and is left out.
    """
    by_turn = steps.rank_blocks.groupby(TURN, as_index=False)
    blocks = by_turn.agg(
        dict.fromkeys(BLOCK, "first") | {"steps": "max", "samples": "sum", "step_s": "max"}
    )
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
    sync = blocks[blocks["kind"] == "sync"]
    if plan.measurement.mode != "interleaved" and not by_round:
        sync = sync.groupby(PLACE, as_index=False)[THROUGHPUT].sum().assign(round=0)
    sync = sync.drop_duplicates([*PLACE, "round"])
    wide = [
        sync.pivot(index=["launch", "round"], columns="arm", values=name) for name in THROUGHPUT
    ]
    launches = wide[0].index.get_level_values("launch")
    tables = []
    for arms in groups:
        table = np.stack([values.reindex(columns=list(arms)) for values in wide], axis=-1)
        table[np.isnan(table[:, 1, 1]), 1:] = np.nan
        tables.append([table[launches == launch] for launch in launches.unique()])
    return tables


def log_levels(blocks: pd.DataFrame, arms: Sequence[str]) -> Array:
    """Each launch's logarithm of an arm's total throughput, float64 [launches, arms]; NaN where an
    arm has no block.
    """
    rates = totals(blocks, PLACE)["throughput_per_s"].unstack("arm")
    return np.asarray(np.log(rates.reindex(columns=list(arms))))


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
