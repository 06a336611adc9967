"""Which rank is slow: throughput of every rank and host, and how far the slowest is from the others, from the raw steps.

Ranks wait for each other in the exchange, so their step times are nearly equal. A straggler shows in its own time: its steps
without exchange or, where there are none, the phases that come before the exchange in every backend.

A rank is named a straggler if it persistently holds the others up: of each launch its mean step without exchange is held against
that of the other ranks, and what is left of that when the median of the other arms, the floor among them, is taken away: a slow
core is slow in all arms, and cores differ from launch to launch by more than ranks of one arm do. How much the rest varies is
pooled over all ranks and arms of a comparison: five launches alone tell it too badly. A rank that is late in all arms is named,
too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import special

from measurement.records.record import PHASES, LaunchRecord
from reports.conclusions.steps import means_by_rank
from reports.schema import ByRank, HostFigures, RankFigures, Straggler

SURE = 0.99
"""With which a rank is named, over all ranks of an arm together."""
WORTH_NAMING = 0.02
"""A rank that is late by less than this share of a step is not named, however sure it is."""


def summarise_ranks(records: Sequence[LaunchRecord], timed: pd.DataFrame, straggler: Straggler | None = None) -> ByRank | None:
    """Figures of an arm's ranks and hosts.

    Args:
        records: of the arm.
        timed: its blocks that count, by rank (``reports.conclusions.steps.Steps.rank_blocks``).
        straggler: of ``find_stragglers``.

    Returns:
        None without synchronised steps, or with a single rank.
    """
    sync, local = timed[timed["kind"] == "sync"], timed[timed["kind"] == "local"]
    hosts = {place.rank: place.host for record in records for place in record.ranks}
    if sync["rank"].nunique() < 2:
        return None
    own = means_by_rank(local, ["step_s"], by=["rank"])["step_s"] if len(local) else _before_exchange(sync)
    by_rank = sync.groupby("rank").agg(samples=("samples", "sum"), total_s=("step_s", "sum"), steps=("steps", "sum"))
    by_rank = by_rank.assign(step_s=by_rank["total_s"] / by_rank["steps"]).drop(columns="steps")
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
    return means_by_rank(sync, ["data_wait_s", "forward_s"], by=["rank"]).sum(axis="columns")


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
        records: of all arms, the floor among them.
        local: their blocks without exchange that count, by rank (``reports.conclusions.steps.Steps.rank_blocks``).
    """
    phases = [f"{phase}_s" for phase in PHASES]
    late = {str(arm): lateness(own, ["step_s", *phases]) for arm, own in local.groupby("arm") if own["rank"].nunique() > 1}
    whole = {arm: table["step_s"] for arm, table in late.items()}
    launches = set.intersection(*(set(table.index) for table in whole.values())) if whole else set()
    if len(launches) < 2:
        return {}
    whole = {arm: table.loc[sorted(launches)] for arm, table in whole.items()}
    hosts = {place.rank: place.host for record in records for place in record.ranks}
    at_least = WORTH_NAMING * float(local["step_s"].sum() / local["steps"].sum())

    def named(table: pd.DataFrame, error_s: float, freedom: int, of: Sequence[str], others: Sequence[str]) -> Straggler | None:
        found = _slowest(table, error_s, freedom, at_least=at_least)
        if found is None:
            return None
        rank, late_s, half = found
        if _mean([whole[arm][rank] for arm in of]) < at_least:  # it is the other arms' other ranks that are late
            return None
        own, theirs = ({phase: _mean([late[arm][phase][rank] for arm in arms]) for phase in phases} for arms in (of, others))
        worst = max(phases, key=lambda phase: own[phase] - theirs[phase]).removesuffix("_s")
        bounds = {"ci_low": late_s - half, "ci_high": late_s + half}
        return Straggler(rank=rank, host=hosts.get(rank, ""), phase=worst, late_s=late_s, **bounds)

    number, ranks = len(launches), next(iter(whole.values())).shape[1]
    common = _median_of(list(whole.values()))
    everywhere = named(common, float(common.std().max()) / math.sqrt(number), number - 1, list(whole), [])
    found: dict[str, Straggler | None] = {}
    if len(whole) == 1:
        return dict.fromkeys(whole, everywhere) if everywhere else {}
    excess = {arm: table - _median_of([whole[other] for other in whole if other != arm]) for arm, table in whole.items()}
    # Of R ranks, each held against the others, and A arms, (R - 1)(A - 1) are free in each launch.
    squares = sum(float(np.square((table - table.mean()).to_numpy(dtype=np.float64)).sum()) for table in excess.values())
    freedom = (number - 1) * (ranks - 1) * (len(whole) - 1)
    for arm, table in excess.items():
        error_s = math.sqrt(squares / len(excess) / ranks / (number - 1) / number)
        others = [other for other in whole if other != arm]
        is_late = everywhere is not None and float(whole[arm][everywhere.rank].mean()) >= at_least
        found[arm] = named(table, error_s, freedom, [arm], others) or (everywhere if is_late else None)
    return {arm: straggler for arm, straggler in found.items() if straggler is not None}


def lateness(local: pd.DataFrame, names: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Seconds that each rank's mean of these times is longer than that of the others: launches down, ranks across; one arm's."""
    means = means_by_rank(local, names)
    found = {}
    for name in names:
        table = means[name].unstack("rank").dropna()
        ranks = table.shape[1]
        found[name] = table.sub(table.mean(axis="columns"), axis="index") * ranks / (ranks - 1)
    return found


def _median_of(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """By launch and rank."""
    return pd.concat(tables).groupby(level=0).median()


def _mean(tables: Sequence[pd.Series]) -> float:
    """Of launches and arms alike; 0 without any."""
    return float(np.mean([table.mean() for table in tables])) if tables else 0.0


def _slowest(table: pd.DataFrame, error_s: float, freedom: int, *, at_least: float) -> tuple[int, float, float] | None:
    """The slowest rank, by how much, and the half width of that: one-sided for each rank, all of them at once (Bonferroni)."""
    means = table.mean()
    rank, late_s = int(str(means.idxmax())), float(means.max())
    half = float(special.stdtrit(freedom, 1 - (1 - SURE) / table.shape[1])) * error_s
    return (rank, late_s, half) if late_s - half > 0 and late_s > at_least else None
