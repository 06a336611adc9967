"""Bytes over each host's link in a step, as counted, beside what the algorithm needs.

Counted is a whole block, which also builds the model anew and begins with untimed steps. A block without gradient exchange does
the same but for the exchange, so what a synchronised block sends more, over all its steps, timed or not, is the exchange.

Needed: in a ring all_reduce of S bytes among n ranks each rank sends 2(n-1)/n × S to the next (P. Patarasuk and X. Yuan, Bandwidth
optimal all-reduce algorithms for clusters of workstations, J. Parallel Distrib. Comput. 69, 2009; no algorithm can do with less).
A host's link carries that once for each of its ranks whose successor is on another host: with ranks placed host by host, once.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from measurement.plan import Plan
from measurement.record import BlockRecord, LaunchRecord
from reports.schema import LinkFigures

HALVING = {"fp16", "bf16"}
"""Values of DDP's ``comm_hook`` and Horovod's ``compression`` with which half of the bytes are exchanged."""
FAR_OFF = 0.2
"""Share of the need, in either direction, from which bytes are called far from it."""


def summarise_links(plan: Plan, records: Sequence[LaunchRecord]) -> list[LinkFigures]:
    """An arm's bytes per step and host, averaged over all blocks that count.

    Args:
        plan: for the untimed steps of a block.
        records: of the arm.

    Returns:
        Empty where no bytes were counted, no block was without exchange, or not every block built the model anew.
    """
    good = [record for record in records if record.status == "ok" and record.ranks]
    blocks = [block for record in good for block in record.blocks if block.link_bytes]
    if plan.measurement.rebuild_every != 1 or {block.kind for block in blocks} != {"sync", "local"}:
        return []
    ranks = {place.rank: place.host for place in good[0].ranks}
    size = int(good[0].ranks[0].model.get("gradient_bytes", 0))
    needed = ring_bytes([ranks[rank] for rank in sorted(ranks)], size * share_sent(good[0].options))
    warmup = plan.measurement.warmup_steps
    return [
        LinkFigures(
            host=host,
            sent_bytes=_per_step(blocks, host, 0, warmup=warmup),
            received_bytes=_per_step(blocks, host, 1, warmup=warmup),
            needed_bytes=needed.get(host, 0.0),
        )
        for host in blocks[0].link_bytes
    ]


def ring_bytes(hosts: Sequence[str], size: float) -> dict[str, float]:
    """What each host must send to others in a ring all_reduce.

    Args:
        hosts: of each rank, by rank.
        size: bytes that every rank contributes.
    """
    number = len(hosts)
    crossings = dict.fromkeys(hosts, 0)
    for rank, host in enumerate(hosts):
        crossings[host] += hosts[(rank + 1) % number] != host
    return {host: count * 2 * (number - 1) / number * size for host, count in crossings.items()}


def share_sent(options: Mapping[str, object]) -> float:
    """The share of the gradients' bytes that an arm with these options exchanges: compression halves it."""
    return 0.5 if HALVING & {options.get("comm_hook"), options.get("compression")} else 1.0


def _per_step(blocks: Sequence[BlockRecord], host: str, way: int, *, warmup: int) -> float:
    """Mean bytes per step of blocks with exchange less those of blocks without; ``way`` is 0 for sent, 1 for received."""
    sync, local = ([block for block in blocks if block.kind == kind and host in block.link_bytes] for kind in ("sync", "local"))
    nothing = statistics.fmean(block.link_bytes[host][way] for block in local)
    return statistics.fmean((block.link_bytes[host][way] - nothing) / (block.steps + warmup) for block in sync)


def is_far_off(link: LinkFigures) -> bool:
    """Whether a host sends far more, or far less, than a ring all_reduce needs."""
    return abs(link.sent_bytes - link.needed_bytes) > FAR_OFF * link.needed_bytes
