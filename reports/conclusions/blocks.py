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
from reports.statistics import Array

BLOCK_KEY = ["launch", "arm", "turn", "round", "block", "kind", "case"]
PAIR_COLUMNS = ["launch", "turn", "round", "log_ratio"]


def read_steps(folder: ResultsFolder, records: Sequence[LaunchRecord]) -> pd.DataFrame:
    """All raw steps of the records in one table, ``launch`` and ``arm`` before ``measurement.record.STEP_COLUMNS``."""
    tables = [folder.steps(record).assign(launch=record.launch, arm=record.arm) for record in records]
    steps = pd.concat([empty_steps().assign(launch=0, arm=""), *tables], ignore_index=True)
    return steps[["launch", "arm", *STEP_COLUMNS]].astype({"launch": "int64", "arm": str, "kind": str, "case": str})


def timed_steps(records: Sequence[LaunchRecord], steps: pd.DataFrame) -> pd.DataFrame:
    """The steps that count, in a fixed order: of launches that are ok, of arms never wrong, of blocks that every rank finished."""
    wrong = {record.arm for record in records if record.status == "wrong"}
    good = [(r.launch, r.arm, r.world_size) for r in records if r.status == "ok" and r.arm not in wrong]
    counted = pd.DataFrame(good, columns=["launch", "arm", "world_size"]).astype({"launch": "int64", "arm": str})
    kept = steps.merge(counted, on=["launch", "arm"]).sort_values([*BLOCK_KEY, "rank", "step"], ignore_index=True)
    ranks = kept.groupby(BLOCK_KEY)["rank"].transform("nunique")
    lengths = kept.groupby([*BLOCK_KEY, "rank"])["step"].transform("size")
    uneven = lengths.groupby([kept[key] for key in BLOCK_KEY]).transform("nunique")
    return kept[(ranks == kept["world_size"]) & (uneven == 1)].drop(columns="world_size").reset_index(drop=True)


def tabulate_blocks(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per launch, arm and block.

    Args:
        steps: of ``timed_steps``.

    Returns:
        ``launch, arm, turn, round, block, kind, case, steps, samples`` (of all ranks), ``block_s`` (the slowest rank's)
        and ``throughput_per_s``, in order of launch and turn.
    """
    by_rank = steps.groupby([*BLOCK_KEY, "rank"], as_index=False).agg(
        steps=("step", "size"), samples=("samples", "sum"), block_s=("step_s", "sum")
    )
    blocks = by_rank.groupby(BLOCK_KEY, as_index=False).agg(
        steps=("steps", "max"), samples=("samples", "sum"), block_s=("block_s", "max")
    )
    blocks["throughput_per_s"] = blocks["samples"] / blocks["block_s"]
    return blocks.sort_values(["launch", "turn", "arm"], ignore_index=True)


def slowest_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per step of all ranks: that of the rank which took longest."""
    ordered = steps.sort_values(["step_s", "rank"], ascending=[False, True], kind="stable")
    slowest = ordered.drop_duplicates(["launch", "arm", "turn", "step"])
    return slowest.sort_values(["launch", "arm", "turn", "step"], ignore_index=True)


def pair_blocks(plan: Plan, blocks: pd.DataFrame, candidate: str) -> pd.DataFrame:
    """The candidate's blocks beside the baseline's of the same launch and round (sequential mode: of the same launch).

    The control is the baseline once more, so a candidate is held against both where both have a block: the same
    measuring time then leaves less error. The control itself is held against the baseline alone.

    Args:
        plan: for the mode and the baseline.
        blocks: of one case, where there are several.
        candidate: the arm's name.

    Returns:
        ``launch, turn`` (the candidate's), ``round, log_ratio``: ln of candidate's over baseline's throughput (of both copies:
        their geometric mean), and by the name of each copy that over it alone.
    """
    sync = blocks[blocks["kind"] == "sync"]
    if plan.measurement.mode == "sequential":
        sync = _whole_launches(sync)
    key = ["launch", "round"]
    sync = sync.drop_duplicates(["arm", *key])
    logs = sync.assign(log=np.log(sync["throughput_per_s"])).set_index([*key, "arm"])["log"].unstack("arm")
    copies = list(copies_of_baseline(plan, candidate))
    theirs = logs.reindex(columns=copies)
    theirs = theirs.where(theirs[plan.baseline].notna(), axis="index")
    ours = sync[sync["arm"] == candidate].set_index(key)
    over = theirs.reindex(ours.index).rsub(np.log(ours["throughput_per_s"]), axis="index")
    pairs = ours[["turn"]].join(over).assign(log_ratio=over.mean(axis="columns")).dropna(subset="log_ratio").reset_index()
    return pairs[[*PAIR_COLUMNS, *copies]].sort_values(["launch", "turn"], ignore_index=True)


def copies_of_baseline(plan: Plan, candidate: str) -> tuple[str, ...]:
    """The arms whose blocks a candidate's are held against."""
    has_control = plan.measurement.control and plan.role(candidate) == "candidate"
    return (plan.baseline, plan.control_name) if has_control else (plan.baseline,)


def _whole_launches(blocks: pd.DataFrame) -> pd.DataFrame:
    """Each launch of an arm as if it were one block."""
    whole = blocks.groupby(["launch", "arm"], as_index=False)[["samples", "block_s"]].sum()
    return whole.assign(turn=0, round=0, throughput_per_s=whole["samples"] / whole["block_s"])


def by_launch(table: pd.DataFrame, value: str | list[str]) -> list[Array]:
    """A column's values, one array per launch; of several columns [rows, columns]."""
    return [group[value].to_numpy(dtype=np.float64) for _, group in table.groupby("launch", sort=True)]


def align_pairs(pairs: Sequence[pd.DataFrame]) -> list[list[Array]]:
    """Each ratio's log-ratios per launch, float64 [rounds, copies of the baseline], of tables of ``pair_blocks``.

    With NaN for rounds that only other ratios have, so that rounds correspond.
    """
    rounds = pd.concat([table[["launch", "round"]] for table in pairs]).drop_duplicates().sort_values(["launch", "round"])
    tables = [rounds.merge(table, on=["launch", "round"], how="left") for table in pairs]
    return [by_launch(table, [str(name) for name in table if name not in PAIR_COLUMNS]) for table in tables]


def exposed_comm(blocks: pd.DataFrame, arm: str) -> list[Array]:
    """Per launch and round with both kinds of block: seconds a step takes longer with gradient exchange than without."""
    own = blocks[blocks["arm"] == arm]
    own = own.assign(step_s=own["block_s"] / own["steps"])
    kinds = {kind: own[own["kind"] == kind].drop_duplicates(["launch", "round"]) for kind in ("sync", "local")}
    both = kinds["sync"].merge(kinds["local"], on=["launch", "round"], suffixes=("", "_local"))
    return by_launch(both.assign(exposed_s=both["step_s"] - both["step_s_local"]), "exposed_s")


def phase_medians(slowest: pd.DataFrame) -> dict[str, float]:
    """Median seconds per step of each phase, on the slowest rank of each step; empty without steps."""
    sync = slowest[slowest["kind"] == "sync"]
    return {phase: float(sync[f"{phase}_s"].median()) for phase in PHASES} if len(sync) else {}


def columns(table: pd.DataFrame, names: Sequence[str]) -> dict[str, list[Any]]:
    """A table as plain lists, for storing."""
    return {name: table[name].tolist() for name in names}
