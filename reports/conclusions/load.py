"""Foreign load: what processes that are not the arm's took of its ranks' cores, block by block.

Load hurts backends unlike: one whose background thread needs a core loses more than one that waits in the kernel. So blocks that
others disturbed are marked, and where they are many a verdict must hold without them, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from measurement.record import LaunchRecord
from reports.schema import LoadFigures

DISTURBED = 0.10
"""A block is disturbed if others took this share of its ranks' cores, a hypervisor's other guests included."""
MANY = 0.05
"""With a larger share of disturbed blocks the machine counts as not quiet."""
COLUMNS = ["launch", "arm", "turn", "round", "foreign", "steal"]


def block_loads(records: Sequence[LaunchRecord]) -> pd.DataFrame:
    """Every block whose load is known: ``COLUMNS`` (shares of the cores), and whether it was ``disturbed``."""
    rows = [
        (record.launch, record.arm, block.turn, block.round, block.foreign_share, block.steal_share or 0.0)
        for record in records
        for block in record.blocks
        if block.foreign_share is not None
    ]
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"foreign": "float64", "steal": "float64", "launch": "int64", "arm": str})
    return table.assign(disturbed=table["foreign"] + table["steal"] > DISTURBED)


def summarise_load(arm: str, loads: pd.DataFrame) -> LoadFigures | None:
    """One arm's; None where it is not known."""
    own = loads[loads["arm"] == arm]
    if not len(own):
        return None
    return LoadFigures(
        foreign_share=float(own["foreign"].mean()),
        steal_share=float(own["steal"].mean()),
        disturbed_share=float(own["disturbed"].mean()),
        blocks=len(own),
    )


def is_quiet(loads: pd.DataFrame) -> bool:
    """Whether so few blocks were disturbed that the figures stand as they are; true where nothing is known."""
    return not len(loads) or float(loads["disturbed"].mean()) <= MANY


def undisturbed(blocks: pd.DataFrame, loads: pd.DataFrame) -> pd.DataFrame:
    """The blocks without those that were disturbed."""
    marked = blocks.merge(loads[["launch", "arm", "turn", "disturbed"]], on=["launch", "arm", "turn"], how="left")
    return marked[~marked["disturbed"].fillna(value=False).astype(bool)].drop(columns="disturbed")
