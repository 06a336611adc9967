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
from reports.quantities import significant
from reports.schema import ArmSummary, LinkFigures

HALVING = {"fp16", "bf16"}
"""Values of DDP's ``comm_hook`` and Horovod's ``compression`` with which half of the bytes are exchanged."""
FAR_OFF = 0.2
EXPLANATION = (
    "more than 20% from a ring's need: small messages cost headers and negotiation, other algorithms (recursive halving or "
    "doubling, hierarchical) cross the link more or less often, lossy compression sends less, dropped packets are sent again"
)


def summarise_links(plan: Plan, records: Sequence[LaunchRecord]) -> list[LinkFigures]:
    """An arm's bytes per step and host, averaged over all blocks that count.

    Args:
        plan: for the untimed steps of a block.
        records: of the arm.

    Returns:
        Nothing where none were counted, where no block was without exchange, or where blocks do not all build the model anew.
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
    """Of the gradients' bytes, those that an arm with these options exchanges."""
    return 0.5 if HALVING & {options.get("comm_hook"), options.get("compression")} else 1.0


def _per_step(blocks: Sequence[BlockRecord], host: str, way: int, *, warmup: int) -> float:
    """Mean over blocks of what one sends, less that of blocks without exchange; block lengths differ between launches only."""
    sync, local = ([block for block in blocks if block.kind == kind and host in block.link_bytes] for kind in ("sync", "local"))
    nothing = statistics.fmean(block.link_bytes[host][way] for block in local)
    return statistics.fmean((block.link_bytes[host][way] - nothing) / (block.steps + warmup) for block in sync)


def link_rows(arms: Sequence[ArmSummary]) -> list[list[str]]:
    """A row for each arm and host: arm, host, megabytes sent, received and needed, sent over needed."""
    return [
        [
            arm.name,
            link.host,
            *(_megabytes(value) for value in (link.sent_bytes, link.received_bytes, link.needed_bytes)),
            _over(link),
        ]
        for arm in arms
        for link in arm.links
    ]


LINK_HEADER = ["arm", "host", "sent MB/step", "received MB/step", "a ring needs", "sent/needed"]


def link_caption(arms: Sequence[ArmSummary]) -> str:
    """What the figures mean, and why some are far from the need."""
    far = dict.fromkeys(arm.name for arm in arms for link in arm.links if is_far_off(link))
    said = (
        "Counted by the interface of each host (headers included): blocks with gradient exchange less blocks without, over all "
        "their steps. Needed each way by a ring all_reduce: 2(n-1)/n × gradient bytes for each rank whose successor is on another "
        "host (Patarasuk and Yuan 2009). MB are 10^6 bytes"
    )
    return f"{said}. {', '.join(far)}: {EXPLANATION}" if far else said


def is_far_off(link: LinkFigures) -> bool:
    """More than a fifth from the need, in either direction."""
    return abs(link.sent_bytes - link.needed_bytes) > FAR_OFF * link.needed_bytes


def _megabytes(number: float) -> str:
    return significant(number / 1e6)


def _over(link: LinkFigures) -> str:
    return f"{link.sent_bytes / link.needed_bytes:.2f}" if link.needed_bytes else ""
