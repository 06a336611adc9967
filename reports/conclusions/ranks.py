"""Which rank is slow: throughput of every rank and host, and how far the slowest is from the others, from the raw steps.

Ranks wait for each other in the exchange, so their step times are alike whoever is slow. What tells the straggler is a rank's own
time: its steps without exchange, or, where there are none, what comes before the exchange in every backend.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from measurement.record import LaunchRecord
from reports.quantities import milliseconds, rate
from reports.schema import ArmSummary, ByRank, Comparison, Estimate, HostFigures, RankFigures


def summarise_ranks(records: Sequence[LaunchRecord], timed: pd.DataFrame) -> ByRank | None:
    """An arm's ranks and hosts.

    Args:
        records: of the arm.
        timed: its steps that count (``reports.blocks.timed_steps``).

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
    """The slowest over the median."""
    ordered = pd.Series(list(seconds))
    return float(ordered.max() / ordered.median())


def rank_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The table: ranks down, then hosts, then skews; arms across. Header and rows; both empty without ranks."""
    arms = [(arm, arm.by_rank) for arm in comparison.arms if arm.by_rank]
    if not arms:
        return [], []
    rows = []
    places = {rank.rank: rank.host for _, found in arms for rank in found.ranks}
    for number, host in sorted(places.items()):
        cells = [next((r for r in found.ranks if r.rank == number), None) for _, found in arms]
        rows.append([f"rank {number}", host, *(_rank_cell(cell) for cell in cells)])
    hosts = dict.fromkeys(places[number] for number in sorted(places))
    for host in hosts:
        sums = [next((h for h in found.hosts if h.host == host), None) for _, found in arms]
        rows.append(["sum", host, *(_rate(one.throughput_per_s) + "/s" if one else "" for one in sums)])
    rows.append(["skew", "", *(f"step {found.step_skew:.2f}, own {found.own_skew:.2f}" for _, found in arms)])
    return ["", "host", *(arm.name for arm, _ in arms)], rows


def _rank_cell(cell: RankFigures | None) -> str:
    if cell is None:
        return ""
    return f"{_rate(cell.throughput_per_s)}/s; step {milliseconds(cell.step_s)} ms, own {milliseconds(cell.own_s)} ms"


def _rate(value: float) -> str:
    return rate(Estimate(value=value))


def rank_caption(arms: Sequence[ArmSummary], unit: str) -> str:
    """What the table's figures mean."""
    ways = " or ".join(dict.fromkeys(arm.by_rank.own_time for arm in arms if arm.by_rank))
    return (
        f"{unit}/s, mean step time, and the rank's own time in a step ({ways}). Ranks wait for each other in the exchange, which "
        "levels their step times; a straggler shows in its own time. Skew: slowest over median rank"
    )
