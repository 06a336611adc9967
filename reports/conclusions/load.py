"""Foreign load: what processes that are not the arm's took of its ranks' cores, block by block.

Load hurts backends unlike: one whose background thread needs a core loses more than one that waits in the kernel. So blocks that
others disturbed are marked, and where they are many a verdict must hold without them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from measurement.record import LaunchRecord
from reports.schema import LoadFigures

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
