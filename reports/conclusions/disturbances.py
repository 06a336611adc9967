"""What disturbed the measuring: foreign load block by block, stalls, and page faults launch by launch.

Foreign load: what processes that are not the arm's took of its ranks' cores, block by block.

Load hurts backends unlike: one whose background thread needs a core loses more than one that waits in the kernel. So blocks that
others disturbed are marked, and where they are many a verdict must hold without them, too.

Stalls: steps far longer than an arm's others. They count in every throughput and ratio; here they are counted and measured.

A stall is a step (by its slowest rank) of more than twice the launch's median that is also further from it than ten times the
median absolute deviation, so that a launch whose steps vary widely has none. What a stall takes is its time beyond the median.

Page faults: glibc's malloc gives large blocks back to the kernel when they are freed, and a step that allocates them anew faults in
each of their pages. How many do so depends on where memory happens to lie in a launch, for as long as it lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from measurement.records.record import LaunchRecord
from reports.schema import LoadFigures, PageFaults, StallFigures

DISTURBED = 0.10
"""A block is disturbed if others took this share of its ranks' cores, a hypervisor's other guests included."""
MANY = 0.05
"""With a larger share of disturbed blocks the machine counts as not quiet."""
WHERE: dict[str, Any] = {"launch": "int64", "arm": str, "turn": "int64", "round": "int64"}
SHARES: dict[str, Any] = {"foreign": "float64", "steal": "float64", "other_threads": "float64"}


def block_loads(records: Sequence[LaunchRecord]) -> pd.DataFrame:
    """Every block whose load is known: columns ``WHERE`` and ``SHARES`` (of the cores), and whether it was ``disturbed``."""
    rows = [
        (record.launch, record.arm, block.turn, block.round, *(getattr(block, f"{name}_share") for name in SHARES))
        for record in records
        for block in record.blocks
        if block.foreign_share is not None
    ]
    table = pd.DataFrame(rows, columns=[*WHERE, *SHARES]).astype(WHERE | SHARES)
    table["steal"] = table["steal"].fillna(0.0)
    return table.assign(disturbed=table["foreign"] + table["steal"] > DISTURBED)


def summarise_load(loads: pd.DataFrame) -> LoadFigures | None:
    """Of these blocks; None where there are none."""
    if not len(loads):
        return None
    means = loads[[*SHARES, "disturbed"]].mean()
    return LoadFigures(
        foreign_share=means["foreign"],
        steal_share=means["steal"],
        disturbed_share=means["disturbed"],
        other_threads_share=None if pd.isna(means["other_threads"]) else means["other_threads"],
        blocks=len(loads),
    )


def is_quiet(load: LoadFigures | None) -> bool:
    """Whether so few blocks were disturbed that the figures stand as they are; true where nothing is known."""
    return load is None or load.disturbed_share <= MANY


def undisturbed(blocks: pd.DataFrame, loads: pd.DataFrame) -> pd.DataFrame:
    """The blocks without those that were disturbed."""
    marked = blocks.merge(loads[["launch", "arm", "turn", "disturbed"]], on=["launch", "arm", "turn"], how="left")
    return marked[~marked["disturbed"].fillna(value=False).astype(bool)].drop(columns="disturbed")


TIMES_MEDIAN = 2.0
TIMES_DEVIATION = 10.0
FEW = 10
"""With fewer stalls in all launches together, how often they come is not known well enough to found a verdict on them."""
TURN = ["launch", "arm", "turn"]


def find_stalls(slowest: pd.DataFrame) -> pd.DataFrame:
    """The stalls among synchronised steps.

    Args:
        slowest: each step's slowest rank (``reports.conclusions.steps.Steps.slowest``).

    Returns:
        ``launch, arm, turn, step_s`` and ``stall_s``, the time beyond the launch's median step.
    """
    sync = slowest[slowest["kind"] == "sync"]
    of_launch = sync.groupby(["launch", "arm"])["step_s"]
    median = of_launch.transform("median")
    beyond = sync["step_s"] - median
    deviation = beyond.abs().groupby([sync["launch"], sync["arm"]]).transform("median")
    is_stall = (sync["step_s"] > TIMES_MEDIAN * median) & (beyond > TIMES_DEVIATION * deviation)
    return sync.assign(stall_s=beyond)[is_stall][[*TURN, "step_s", "stall_s"]]


def without_stalls(blocks: pd.DataFrame, stalls: pd.DataFrame) -> pd.DataFrame:
    """The same blocks as if each stall had been a median step. Never for a verdict: it tells what the stalls are worth."""
    lost = stalls.groupby(TURN, as_index=False)["stall_s"].sum()
    merged = blocks.merge(lost, on=TURN, how="left")
    shorter = merged["block_s"] - merged["stall_s"].fillna(0.0)
    return merged.assign(block_s=shorter, throughput_per_s=merged["samples"] / shorter).drop(columns="stall_s")


def summarise_stalls(arm: str, stalls: pd.DataFrame, blocks: pd.DataFrame) -> StallFigures | None:
    """One arm's stalls; None without synchronised blocks."""
    sync = blocks[(blocks["arm"] == arm) & (blocks["kind"] == "sync")]
    if not len(sync):
        return None
    own = stalls[stalls["arm"] == arm]
    lost = float(own["stall_s"].sum())
    return StallFigures(
        count=len(own),
        seconds=lost,
        share=lost / float(sync["block_s"].sum()),
        typical_s=float(np.median(own["step_s"])) if len(own) else None,
        longest_s=float(own["step_s"].max()) if len(own) else None,
    )


def summarise_page_faults(records: Sequence[LaunchRecord]) -> PageFaults | None:
    """One arm's, of synchronised steps; None where they were not counted."""
    rows = [
        (record.launch, block.page_faults, block.steps)
        for record in records
        for block in record.blocks
        if block.kind == "sync" and block.page_faults is not None
    ]
    if not rows:
        return None
    sums = pd.DataFrame(rows, columns=["launch", "faults", "steps"]).groupby("launch").sum()
    by_launch = sums["faults"] / sums["steps"]
    return PageFaults(per_step=sums["faults"].sum() / sums["steps"].sum(), fewest=by_launch.min(), most=by_launch.max())
