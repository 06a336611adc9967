"""From raw steps to blocks, and from blocks to pairs of neighbours: the only samples that verdicts are made of.

A block is timed by its slowest rank. Blocks that a rank did not finish are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from measurement.plan import Plan
from measurement.record import PHASES, STEP_COLUMNS, LaunchRecord
from measurement.results import ResultsFolder, empty_steps
from reports.statistics.intervals import Array

BLOCK_KEY = ["launch", "arm", "turn", "round", "block", "kind", "case"]
"""``case`` is null where the workload is trained, so that groups by this key need ``dropna=False``."""
PAIR_COLUMNS = ["launch", "turn", "round", "log_ratio"]


def read_steps(folder: ResultsFolder, records: Sequence[LaunchRecord]) -> pd.DataFrame:
    """All raw steps of the records in one table, ``launch`` and ``arm`` before ``measurement.record.STEP_COLUMNS``."""
    tables = [folder.steps(record).assign(launch=record.launch, arm=record.arm) for record in records]
    steps = pd.concat([empty_steps().assign(launch=0, arm=""), *tables], ignore_index=True)
    return steps[["launch", "arm", *STEP_COLUMNS]].astype({"launch": "int64", "arm": str, "kind": str, "case": "string"})


def timed_steps(records: Sequence[LaunchRecord], steps: pd.DataFrame) -> pd.DataFrame:
    """The steps that count, in a fixed order: their launch is ok, their arm was never wrong, every rank finished their block."""
    wrong = {record.arm for record in records if record.status == "wrong"}
    good = [(r.launch, r.arm, r.world_size) for r in records if r.status == "ok" and r.arm not in wrong]
    counted = pd.DataFrame(good, columns=["launch", "arm", "world_size"]).astype({"launch": "int64", "arm": str})
    kept = steps.merge(counted, on=["launch", "arm"]).sort_values([*BLOCK_KEY, "rank", "step"], ignore_index=True)
    ranks = kept.groupby(BLOCK_KEY, dropna=False)["rank"].transform("nunique")
    lengths = kept.groupby([*BLOCK_KEY, "rank"], dropna=False)["step"].transform("size")
    uneven = lengths.groupby([kept[key] for key in BLOCK_KEY], dropna=False).transform("nunique")
    return kept[(ranks == kept["world_size"]) & (uneven == 1)].drop(columns="world_size").reset_index(drop=True)


def tabulate_blocks(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per launch, arm and block.

    Args:
        steps: of ``timed_steps``.

    Returns:
        ``launch, arm, turn, round, block, kind, case, steps, samples`` (of all ranks), ``block_s`` (the slowest rank's)
        and ``throughput_per_s``, in order of launch and turn.
    """
    by_rank = steps.groupby([*BLOCK_KEY, "rank"], as_index=False, dropna=False).agg(
        steps=("step", "size"), samples=("samples", "sum"), block_s=("step_s", "sum")
    )
    blocks = by_rank.groupby(BLOCK_KEY, as_index=False, dropna=False).agg(
        steps=("steps", "max"), samples=("samples", "sum"), block_s=("block_s", "max")
    )
    blocks["throughput_per_s"] = blocks["samples"] / blocks["block_s"]
    return blocks.sort_values(["launch", "turn", "arm"], ignore_index=True)


def slowest_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """For each step the row of the rank that took longest."""
    ordered = steps.sort_values(["step_s", "rank"], ascending=[False, True], kind="stable")
    slowest = ordered.drop_duplicates(["launch", "arm", "turn", "step"])
    return slowest.sort_values(["launch", "arm", "turn", "step"], ignore_index=True)


def pair_blocks(plan: Plan, blocks: pd.DataFrame, candidate: str) -> pd.DataFrame:
    """Pair a candidate's blocks with the baseline's of the same launch and round; of the same launch, where arms took no turns.

    The control is a second copy of the baseline. A candidate is paired with both copies, where both have a block: that leaves less
    error in the same measuring time. The control itself is paired with the baseline alone.

    Args:
        plan: for the mode and the baseline.
        blocks: of one case, where there are several.
        candidate: the arm's name.

    Returns:
        ``launch, turn`` (the candidate's), ``round, log_ratio``: ln of candidate's over baseline's throughput (of two copies:
        their geometric mean).
    """
    key = ["launch", "round"]
    sync = _paired_blocks(plan, blocks)
    logs = sync.assign(log=np.log(sync["throughput_per_s"])).set_index([*key, "arm"])["log"].unstack("arm")
    copies = list(copies_of_baseline(plan, candidate))
    theirs = logs.reindex(columns=copies)
    theirs = theirs.where(theirs[plan.baseline].notna(), axis="index")
    ours = sync[sync["arm"] == candidate].set_index(key)
    over = theirs.reindex(ours.index).rsub(np.log(ours["throughput_per_s"]), axis="index")
    pairs = ours[["turn"]].join(over).assign(log_ratio=over.mean(axis="columns")).dropna(subset="log_ratio").reset_index()
    return pairs[PAIR_COLUMNS].sort_values(["launch", "turn"], ignore_index=True)


def copies_of_baseline(plan: Plan, candidate: str) -> tuple[str, ...]:
    """The arms that a candidate's blocks are paired with."""
    has_control = plan.measurement.control and plan.role(candidate) == "candidate"
    return (plan.baseline, plan.control_name) if has_control else (plan.baseline,)


def _whole_launches(blocks: pd.DataFrame) -> pd.DataFrame:
    """Every launch of an arm made one block."""
    whole = blocks.groupby(["launch", "arm"], as_index=False)[["samples", "block_s"]].sum()
    return whole.assign(turn=0, round=0, throughput_per_s=whole["samples"] / whole["block_s"])


def by_launch(table: pd.DataFrame, value: str | list[str]) -> list[Array]:
    """A column's values, one array per launch; of several columns [rows, columns]."""
    return [group[value].to_numpy(dtype=np.float64) for _, group in table.groupby("launch", sort=True)]


def total_tables(plan: Plan, blocks: pd.DataFrame, groups: Sequence[Sequence[str]]) -> list[list[Array]]:
    """What the ratios of totals are made of: every arm's samples and seconds, round by round.

    Args:
        plan: for the mode.
        blocks: of one case, where there are several.
        groups: per ratio the arm, then those that it is held against (``with_copies``); the first of these must have a block.

    Returns:
        Per ratio and launch float64 [rounds, arms, 2] of samples and seconds. The rounds are the same in all ratios; NaN where an
        arm has no block.
    """
    sync = _paired_blocks(plan, blocks)
    samples, seconds = (sync.pivot_table(index=["launch", "round"], columns="arm", values=name) for name in ("samples", "block_s"))
    launches = samples.index.get_level_values("launch").to_numpy()
    found = []
    for arms in groups:
        table = np.stack([samples.reindex(columns=list(arms)), seconds.reindex(columns=list(arms))], axis=-1).astype(np.float64)
        table[np.isnan(table[:, 1, 1]), 1:] = np.nan
        found.append([table[launches == launch] for launch in np.unique(launches)])
    return found


def with_copies(plan: Plan, name: str) -> list[str]:
    """An arm and the copies of the baseline that it is held against."""
    return [name, *copies_of_baseline(plan, name)]


def _paired_blocks(plan: Plan, blocks: pd.DataFrame) -> pd.DataFrame:
    """The synchronised blocks, one of each arm in a round; where arms took no turns a launch is one."""
    sync = blocks[blocks["kind"] == "sync"]
    if plan.measurement.mode != "interleaved":
        sync = _whole_launches(sync)
    return sync.drop_duplicates(["arm", "launch", "round"])


def phase_medians(slowest: pd.DataFrame) -> dict[str, float]:
    """Median seconds per step of each phase, on the slowest rank of each step; empty without steps."""
    sync = slowest[slowest["kind"] == "sync"]
    return {phase: float(sync[f"{phase}_s"].median()) for phase in PHASES} if len(sync) else {}


def columns(table: pd.DataFrame, names: Sequence[str]) -> dict[str, list[Any]]:
    """A table as plain lists, for storing; what is missing is None."""
    return {name: table[name].astype(object).where(table[name].notna(), None).tolist() for name in names}
