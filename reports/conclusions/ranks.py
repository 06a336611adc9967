"""Which rank is slow: throughput and own time of every rank, and who holds the others up, from the
raw steps.

Ranks wait for each other in the exchange, so their step times are nearly equal. A straggler shows
in its own time: its steps without exchange or, where there are none, the phases that come before
the exchange in every backend.

A rank is named a straggler if it persistently holds the others up: of each launch its mean step
without exchange is compared with that of the other ranks, and what is left of that when the median
of the other arms, the floor among them, is taken away: a slow core is slow in all arms, and cores
differ from launch to launch by more than ranks of one arm do. How much the rest varies is pooled
over all ranks and arms of a comparison: five launches alone tell it too badly. A rank that is late
in all arms is named, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from measurement.records.record import LaunchRecord
from reports.conclusions.steps import TIMES, means_by_rank
from reports.schema import ByRank, RankFigures, Straggler
from reports.statistics.student import student_t

CONFIDENCE = 0.99
"""With which a rank is named, over all ranks of an arm together."""
MIN_LATE_SHARE = 0.02
"""A rank that is late by less than this share of a step is not named, however sure it is."""


def summarise_ranks(
    records: Sequence[LaunchRecord], timed: pd.DataFrame, straggler: Straggler | None
) -> ByRank | None:
    """Figures of an arm's ranks; None without synchronised steps, or with a single rank.

    ``timed``: its blocks that count, by rank (``Steps.rank_blocks``).
    """
    sync, local = timed[timed["kind"] == "sync"], timed[timed["kind"] == "local"]
    hosts = {place.rank: place.host for record in records for place in record.ranks}
    if sync["rank"].nunique() < 2:
        return None
    alone = local if len(local) else before_exchange(sync)
    names = ["samples", "step_s", "steps"]
    own = alone.groupby("rank")[names].sum()
    own_s = own["step_s"] / own["steps"]
    ranks = [
        RankFigures(
            rank=rank,
            host=hosts.get(rank, ""),
            # iterations of a script are counted on rank 0 alone
            throughput_per_s=samples / seconds if samples else None,
            step_s=seconds / steps,
            own_s=own_s[rank],
        )
        for rank, samples, seconds, steps in sync.groupby("rank")[names].sum().itertuples()
    ]
    return ByRank(
        ranks=ranks,
        own_time="local step" if len(local) else "data wait and forward",
        straggler=straggler,
    )


def before_exchange(sync: pd.DataFrame) -> pd.DataFrame:
    """Blocks with exchange as if their steps ended where it begins: data wait and forward alone."""
    return sync.assign(
        step_s=sync["data_wait_s"] + sync["forward_s"],
        backward_s=0.0,
        optimizer_s=0.0,
        exchange_s=0.0,
    )


def find_stragglers(records: Sequence[LaunchRecord], local: pd.DataFrame) -> dict[str, Straggler]:
    """By arm, of those that have one.

    ``local``: blocks without exchange that count, by rank (``Steps.rank_blocks``), the floor's
    among them; of scripts ``before_exchange``.
    """
    tables = {
        str(arm): _lateness(blocks)
        for arm, blocks in local.groupby("arm")
        if blocks["rank"].nunique() > 1
    }
    launches = (
        set.intersection(*(set(table.index) for table in tables.values())) if tables else set()
    )
    if len(launches) < 2:
        return {}
    table = pd.concat(
        {arm: table.loc[sorted(launches)] for arm, table in tables.items()}, names=["arm"]
    )
    at_least = MIN_LATE_SHARE * float(local["step_s"].sum() / local["steps"].sum())
    hosts = {place.rank: place.host for record in records for place in record.ranks}
    whole = table.loc[:, "step_s":"step_s"].droplevel(0, axis="columns")
    arms, number = list(tables), len(launches)
    common = whole.groupby("launch").median()

    def late_rank(
        late: pd.DataFrame, error_s: float, df: int, arms: Sequence[str], others: Sequence[str]
    ) -> Straggler | None:
        """The rank that is late, if one is: one-sided for each rank, all of them at once
        (Bonferroni).

        Args:
            late: seconds, launches down, ranks across.
            error_s: the standard error of a rank's mean.
            df: its degrees of freedom.
            arms: those that ``late`` is of, in which the rank must be late by itself: else other
                arms have another late rank.
            others: those that they are compared with.
        """
        means = late.mean()
        rank, late_s = int(str(means.idxmax())), float(means.max())
        half = student_t(1 - 2 * (1 - CONFIDENCE) / late.shape[1], df) * error_s
        times = table.loc[:, (slice(None), rank)].droplevel("rank", axis="columns")
        times_late = times.loc[list(arms)].mean()
        if late_s <= max(half, at_least) or times_late["step_s"] < at_least:
            return None
        excess = times_late - times.loc[list(others)].mean() if others else times_late
        return Straggler(
            rank=rank,
            host=hosts.get(rank, ""),
            phase=str(excess.drop("step_s").idxmax()).removesuffix("_s"),
            late_s=late_s,
            ci_low=late_s - half,
            ci_high=late_s + half,
        )

    error_s = float(common.std().max()) / math.sqrt(number)
    everywhere = late_rank(common, error_s, number - 1, arms, [])
    if len(arms) == 1:
        return {arms[0]: everywhere} if everywhere else {}
    others = {arm: [other for other in arms if other != arm] for arm in arms}
    excess = {
        arm: whole.loc[arm] - whole.loc[others[arm]].groupby("launch").median() for arm in arms
    }
    # Of R ranks, each compared with the others, and A arms, (R - 1)(A - 1) are free in each launch.
    ranks = whole.shape[1]
    squares = sum(float((late.var(ddof=0) * number).sum()) for late in excess.values())
    error_s = math.sqrt(squares / len(arms) / ranks / (number - 1) / number)
    df = (number - 1) * (ranks - 1) * (len(arms) - 1)
    stragglers = {
        arm: late_rank(late, error_s, df, [arm], others[arm]) for arm, late in excess.items()
    }
    if everywhere:
        late_s = whole[everywhere.rank].groupby("arm").mean()
        stragglers |= {
            arm: stragglers[arm] or everywhere for arm in arms if late_s[arm] >= at_least
        }
    return {arm: straggler for arm, straggler in stragglers.items() if straggler}


def _lateness(local: pd.DataFrame) -> pd.DataFrame:
    """Seconds that each rank's mean of each time is longer than that of the others.

    ``local``: blocks of one arm, by rank. Returns launches down; columns by time and rank.
    """
    late = {}
    for name, means in means_by_rank(local, TIMES).items():
        ranks = means.shape[1]
        late[name] = means.sub(means.mean(axis="columns"), axis="index") * ranks / (ranks - 1)
    return pd.concat(late, axis="columns", names=[None]).dropna()
