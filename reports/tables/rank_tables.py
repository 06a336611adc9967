"""The tables of ranks and hosts and of the bytes over each host's link, with their captions."""

from __future__ import annotations

from collections.abc import Sequence

from reports.conclusions.machine import is_far_off
from reports.schema import ArmSummary, ByRank, Comparison
from reports.tables.table import Table, table
from reports.wording.formatting import milliseconds, rate, significant

EXPLANATION = (
    "more than 20% from a ring's need: small messages cost headers and negotiation, other algorithms (recursive halving or "
    "doubling, hierarchical) cross the link more or less often, lossy compression sends less, dropped packets are sent again"
)
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


def rank_caption(arms: Sequence[ArmSummary], unit: str) -> str:
    """What the table's figures mean."""
    number = max((len(arm.by_rank.ranks) for arm in arms if arm.by_rank), default=0)
    shown = f". Of {number} ranks the {SLOWEST_SHOWN} that take longest by themselves are shown, of each arm"
    ways = " or ".join(dict.fromkeys(arm.by_rank.own_time for arm in arms if arm.by_rank))
    return (
        f"{unit}/s, mean step time, and the rank's own time in a step ({ways}). Ranks wait for each other in the exchange, which "
        "levels their step times; a straggler shows in its own time. Skew: slowest over median rank"
        + (shown if number > MOST_RANKS else "")
    )


def link_table(arms: Sequence[ArmSummary]) -> Table:
    """A row for each arm and host; none where nothing was counted."""
    rows = []
    for name, link in ((arm.name, link) for arm in arms for link in arm.links):
        sizes = {way: significant(getattr(link, f"{way}_bytes") / 1e6) for way in ("sent", "received", "needed")}
        ratio = f"{link.sent_bytes / link.needed_bytes:.2f}" if link.needed_bytes else ""
        rows.append({"arm": name, "host": link.host, **sizes, "share": ratio})
    return table(LINK_TITLES, rows)


def link_caption(arms: Sequence[ArmSummary]) -> str:
    """What the figures mean, and why some are far from the need."""
    far = dict.fromkeys(arm.name for arm in arms for link in arm.links if is_far_off(link))
    said = (
        "Counted by the interface of each host (headers included): blocks with gradient exchange less blocks without, over all "
        "their steps. Needed each way by a ring all_reduce: 2(n-1)/n × gradient bytes for each rank whose successor is on another "
        "host (Patarasuk and Yuan 2009). MB are 10^6 bytes"
    )
    return f"{said}. {', '.join(far)}: {EXPLANATION}" if far else said
