"""Data wait and exposed communication, and which of them limits the speed: the only definitions of these figures.

Data wait is what the training loop waits for its next batch; without loader workers that is all of the loading. Exposed
communication is what a step takes longer with gradient exchange than without. Shares are of the mean synchronised step.
"""

from __future__ import annotations

from typing import Literal

import pandas as pd

from reports.conclusions.blocks import by_launch
from reports.schema import Estimate, StepShares
from reports.statistics.intervals import Array

LIMIT = 0.25
"""From this share of a step on, a cause is called the limit: without it, throughput would rise by at least a third. Where neither
share reaches it, computing takes more than half of the step."""

Limit = Literal["input", "network", "computing", "not the input"]
"""The last one where exposed communication was not measured: network and computing cannot be told apart then."""


def data_wait_share(sync: pd.DataFrame) -> float:
    """The share of its synchronised steps that a rank waits for data, of the rank that waits most; 0 to 1.

    The other ranks wait for that rank in the exchange.

    Args:
        sync: the synchronised steps of one arm that count, at least one, columns ``rank``, ``data_wait_s`` and ``step_s``.
    """
    sums = sync.groupby("rank")[["data_wait_s", "step_s"]].sum()
    return float((sums["data_wait_s"] / sums["step_s"]).max())


def exposed_by_round(blocks: pd.DataFrame) -> pd.DataFrame:
    """Seconds that a step takes longer with gradient exchange than without, in every round with both kinds of block.

    Args:
        blocks: of one arm (``reports.conclusions.blocks.tabulate_blocks``).

    Returns:
        ``launch, round, exposed_s``: the mean synchronised step less the mean local step, each by its slowest rank.
    """
    timed = blocks.assign(step_s=blocks["block_s"] / blocks["steps"])
    sync, local = (timed[timed["kind"] == kind].drop_duplicates(["launch", "round"]) for kind in ("sync", "local"))
    both = sync.merge(local, on=["launch", "round"], suffixes=("", "_local"))
    return both.assign(exposed_s=both["step_s"] - both["step_s_local"])[["launch", "round", "exposed_s"]]


def exposed_comm(blocks: pd.DataFrame) -> list[Array]:
    """The seconds of ``exposed_by_round``, one array for each launch."""
    return by_launch(exposed_by_round(blocks), "exposed_s")


def exposed_comm_share(exposed: Estimate | None, sync_blocks: pd.DataFrame) -> float | None:
    """Exposed communication over the mean step of the slowest rank; noise can make it negative; None if not measured.

    Args:
        exposed: seconds per step, as ``ArmSummary.exposed_comm_s``.
        sync_blocks: the arm's synchronised blocks, columns ``block_s`` and ``steps`` (``blocks.tabulate_blocks``).
    """
    if exposed is None:
        return None
    return exposed.value / float(sync_blocks["block_s"].sum() / sync_blocks["steps"].sum())


def limit_of(shares: StepShares) -> Limit:
    """What limits an arm's speed: the larger share, where it reaches ``LIMIT``; else computing."""
    exposed = shares.exposed_comm
    if shares.data_wait >= max(LIMIT, exposed or 0.0):
        return "input"
    if exposed is None:
        return "not the input"
    return "network" if exposed >= LIMIT else "computing"
