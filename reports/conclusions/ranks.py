"""Which rank is slow: throughput of every rank and host, and how far the slowest is from the others, from the raw steps.

Ranks wait for each other in the exchange, so their step times are nearly equal. A straggler shows in its own time: its steps
without exchange or, where there are none, the phases that come before the exchange in every backend.

A rank is named a straggler if it persistently holds the others up: of each launch its mean step without exchange is held against
that of the other ranks. How much such a difference varies from launch to launch is pooled over all ranks and arms of a comparison:
five launches alone tell it too badly, and identical processes differ by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import special

from measurement.record import PHASES, LaunchRecord
from reports.schema import ByRank, HostFigures, RankFigures, Straggler

SURE = 0.99
"""With which a rank is named, over all ranks of an arm together."""
WORTH_NAMING = 0.02
"""A rank that is late by less than this share of a step is not named, however sure it is."""


def summarise_ranks(records: Sequence[LaunchRecord], timed: pd.DataFrame, straggler: Straggler | None = None) -> ByRank | None:
    """Figures of an arm's ranks and hosts.

    Args:
        records: of the arm.
        timed: its steps that count (``reports.conclusions.blocks.timed_steps``).
        straggler: of ``find_stragglers``.

    Returns:
        None without synchronised steps, or with a single rank.
    """
    sync, local = timed[timed["kind"] == "sync"], timed[timed["kind"] == "local"]
    hosts = {place.rank: place.host for record in records for place in record.ranks}
    if sync["rank"].nunique() < 2:
        return None
    own = local.groupby("rank")["step_s"].mean() if len(local) else _before_exchange(sync)
    by_rank = sync.groupby("rank").agg(samples=("samples", "sum"), total_s=("step_s", "sum"), step_s=("step_s", "mean"))
    ranks = [
        RankFigures(rank=rank, host=hosts.get(rank, ""), throughput_per_s=samples / total_s, step_s=step_s, own_s=own_s)
        for rank, samples, total_s, step_s, own_s in by_rank.assign(own_s=own).reset_index().itertuples(index=False, name=None)
    ]
    return ByRank(
        ranks=ranks,
        hosts=_sums(ranks),
        step_skew=skew([rank.step_s for rank in ranks]),
        own_skew=skew([rank.own_s for rank in ranks]),
        own_time="local step" if len(local) else "data wait and forward",
        straggler=straggler,
    )


def _before_exchange(sync: pd.DataFrame) -> pd.Series:
    return sync.assign(own_s=sync["data_wait_s"] + sync["forward_s"]).groupby("rank")["own_s"].mean()


def _sums(ranks: Sequence[RankFigures]) -> list[HostFigures]:
    sums = []
    for host in dict.fromkeys(rank.host for rank in ranks):
        own = [rank.throughput_per_s for rank in ranks if rank.host == host]
        sums.append(HostFigures(host=host, ranks=len(own), throughput_per_s=sum(own)))
    return sums


def skew(seconds: Sequence[float]) -> float:
    """The longest time over the median."""
    ordered = pd.Series(list(seconds))
    return float(ordered.max() / ordered.median())


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
