"""Stalls: steps far longer than an arm's others. They count in every throughput and ratio; here they are counted and measured.

A stall is a step (by its slowest rank) of more than twice the launch's median that is also further from it than ten times the
median absolute deviation, so that a launch whose steps vary widely has none. What a stall takes is its time beyond the median.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from reports.schema import StallFigures

TIMES_MEDIAN = 2.0
TIMES_DEVIATION = 10.0
FEW = 10
"""With fewer stalls in all launches together, how often they come is not known well enough to found a verdict on them."""
TURN = ["launch", "arm", "turn"]


def find_stalls(slowest: pd.DataFrame) -> pd.DataFrame:
    """The stalls among synchronised steps.

    Args:
        slowest: each step's slowest rank (``reports.conclusions.blocks.slowest_steps``).

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
