"""The rank that persistently holds the others up, if there is one.

Ranks wait for each other in exchange, so a straggler shows in steps without it. Of each launch the mean step of a rank is held
against that of the other ranks. How much such a difference varies from launch to launch is pooled over all ranks and arms of a
comparison: five launches alone tell it too badly, and identical processes differ by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import special

from measurement.record import PHASES, LaunchRecord
from reports.schema import Straggler

SURE = 0.99
"""With which a rank is named, over all ranks of an arm together."""
WORTH_NAMING = 0.02
"""A rank that is late by less than this share of a step is not named, however sure it is."""


def find_stragglers(records: Sequence[LaunchRecord], local: pd.DataFrame) -> dict[str, Straggler]:
    """By arm, of those that have one.

    Args:
        records: of all arms.
        local: their steps without exchange that count (``reports.conclusions.blocks.timed_steps``).
    """
    tables = {str(arm): lateness(own) for arm, own in local.groupby("arm") if own["rank"].nunique() > 1}
    deviations = pd.concat([(table - table.mean()).stack() for table in tables.values()]) if tables else pd.Series(dtype="float64")
    freedom = sum((len(table) - 1) * (table.shape[1] - 1) for table in tables.values())
    if freedom < 1:
        return {}
    # Of R ranks' differences, each from the others' mean, R - 1 are free, which a sum over all of them allows for.
    ranks = next(iter(tables.values())).shape[1]
    variance = float(np.square(deviations.to_numpy(dtype=np.float64)).sum()) * (ranks - 1) / ranks / freedom
    hosts = {place.rank: place.host for record in records for place in record.ranks}
    steps = local.groupby("arm")["step_s"].mean().to_dict()
    found = {}
    for arm, table in tables.items():
        straggler = _slowest(table, variance, freedom, at_least=WORTH_NAMING * steps[arm])
        if straggler is not None:
            rank, late_s, half = straggler
            phase = _phase(local[local["arm"] == arm], rank)
            found[arm] = Straggler(
                rank=rank, host=hosts.get(rank, ""), phase=phase, late_s=late_s, ci_low=late_s - half, ci_high=late_s + half
            )
    return found


def lateness(local: pd.DataFrame) -> pd.DataFrame:
    """Seconds that each rank's mean step is longer than that of the others: launches down, ranks across; one arm's steps."""
    means = local.groupby(["launch", "rank"])["step_s"].mean().unstack("rank").dropna()
    ranks = means.shape[1]
    return (means.sub(means.mean(axis="columns"), axis="index")) * ranks / (ranks - 1)


def _slowest(table: pd.DataFrame, variance: float, freedom: int, *, at_least: float) -> tuple[int, float, float] | None:
    """The slowest rank, by how much, and the half width of that: one-sided for each rank, all of them at once (Bonferroni)."""
    means = table.mean()
    rank, late_s = int(str(means.idxmax())), float(means.max())
    half = float(special.stdtrit(freedom, 1 - (1 - SURE) / table.shape[1])) * math.sqrt(variance / len(table))
    return (rank, late_s, half) if late_s - half > 0 and late_s > at_least else None


def _phase(local: pd.DataFrame, rank: int) -> str:
    """The phase in which a rank is late by most."""
    own, others = (local[(local["rank"] == rank) == is_own][[f"{phase}_s" for phase in PHASES]].mean() for is_own in (True, False))
    return str((own - others).idxmax()).removesuffix("_s")
