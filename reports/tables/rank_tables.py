"""The tables of ranks and hosts and of the bytes over each host's link, with their captions."""

from __future__ import annotations

from collections.abc import Sequence

from reports.schema import ArmSummary, ByRank, Comparison
from reports.tables.table import Table, table
from reports.wording.formatting import milliseconds, rate, significant

MOST_RANKS = 64
"""That all have a row of their own."""
SLOWEST_SHOWN = 8
"""Ranks of each arm that have a row, where there are more."""
LINK_TITLES = {
    "arm": "arm",
    "host": "host",
    "sent": "sent MB/step",
    "received": "received MB/step",
    "needed": "a ring needs",
    "share": "sent/needed",
}


def rank_table(comparison: Comparison) -> Table:
    """Ranks down, then hosts, then skews; one column per arm, named like it, after columns ``/place`` and ``/host``.

    Of very many ranks only the slowest of each arm have a row. No rows where no arm has figures by rank.
    """
    arms = {arm.name: arm.by_rank for arm in comparison.arms if arm.by_rank}
    all_places = dict(sorted({rank.rank: rank.host for found in arms.values() for rank in found.ranks}.items()))
    places = all_places if len(all_places) <= MOST_RANKS else {rank: all_places[rank] for rank in _slowest(list(arms.values()))}
    skews = {name: f"step {own.step_skew:.2f}, own {own.own_skew:.2f}" for name, own in arms.items()}
    by_place = {
        (f"rank {number}", host): {name: _rank(own, number) for name, own in arms.items()} for number, host in places.items()
    }
    sums = {name: {host.host: f"{rate(host.throughput_per_s)}/s" for host in own.hosts} for name, own in arms.items()}
    by_place |= {("sum", host): {name: own.get(host, "") for name, own in sums.items()} for host in all_places.values()}
    by_place |= {("skew", ""): skews} if arms else {}
    rows = [{"/place": place, "/host": host, **by_arm} for (place, host), by_arm in by_place.items()]
    return table({"/place": "", "/host": "host", **dict(zip(arms, arms, strict=True))}, rows)


def _slowest(arms: Sequence[ByRank]) -> list[int]:
    """The ranks that take longest by themselves, of every arm ``SLOWEST_SHOWN``."""
    ordered = [sorted(arm.ranks, key=lambda rank: rank.own_s, reverse=True) for arm in arms]
    return sorted({rank.rank for ranks in ordered for rank in ranks[:SLOWEST_SHOWN]})


def _rank(found: ByRank, number: int) -> str:
    """Empty where the arm has no such rank."""
    own = next((rank for rank in found.ranks if rank.rank == number), None)
    return f"{rate(own.throughput_per_s)}/s; step {milliseconds(own.step_s)} ms, own {milliseconds(own.own_s)} ms" if own else ""


def link_table(arms: Sequence[ArmSummary]) -> Table:
    """A row for each arm and host; none where nothing was counted."""
    rows = []
    for name, link in ((arm.name, link) for arm in arms for link in arm.links):
        sizes = {way: significant(getattr(link, f"{way}_bytes") / 1e6) for way in ("sent", "received", "needed")}
        ratio = f"{link.sent_bytes / link.needed_bytes:.2f}" if link.needed_bytes else ""
        rows.append({"arm": name, "host": link.host, **sizes, "share": ratio})
    return table(LINK_TITLES, rows)
