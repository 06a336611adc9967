"""Which rank is slow: throughput of every rank and host, and how far the slowest is from the others, from the raw steps.

Ranks wait for each other in the exchange, so their step times are nearly equal. A straggler shows in its own time: its steps
without exchange or, where there are none, the phases that come before the exchange in every backend.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from measurement.record import LaunchRecord
from reports.schema import ByRank, HostFigures, RankFigures, Straggler


def summarise_ranks(records: Sequence[LaunchRecord], timed: pd.DataFrame, straggler: Straggler | None = None) -> ByRank | None:
    """Figures of an arm's ranks and hosts.

    Args:
        records: of the arm.
        timed: its steps that count (``reports.conclusions.blocks.timed_steps``).
        straggler: as found beside the other arms (``reports.conclusions.stragglers``).

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
