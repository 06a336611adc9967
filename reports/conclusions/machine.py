"""The machine beside the ranks: what each host did while an arm's synchronised blocks ran, for
whichever process.

Read outside the ranks before and after each block, so that it contains the block's untimed steps.
Power times time is energy; divided by the throughput of the same blocks it is the energy of a
sample.

Bytes over each host's link in a step, as counted, beside what the algorithm needs: a whole block
also builds the model again and begins with untimed steps. A block without gradient exchange does
the same but for the exchange, so what a synchronised block sends more, over all its steps, timed or
not, is the exchange.

Needed: in a ring all_reduce of S bytes among n ranks each rank sends 2(n-1)/n × S to the next (P.
Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, J.
Parallel Distrib. Comput. 69, 2009; no algorithm can do with less). A host's link carries that once
for each of its ranks whose successor is on another host: with ranks placed host by host, once.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from measurement.plans.plan import Plan
from measurement.records.block import SLOWED_BY, BlockRecord
from measurement.records.record import LaunchRecord
from reports.schema import Estimate, LinkFigures, MachineFigures

PLACE = ["launch", "turn"]
ENERGIES = ("energy_j", "gpu_energy_j")
"""What processor packages took (RAPL), and GPUs (NVML)."""
HALVING = {"fp16", "bf16"}
"""Values of DDP's ``comm_hook`` and Horovod's ``compression`` with which half of the bytes are
exchanged."""


def summarise_machine(
    records: Sequence[LaunchRecord], host_use: pd.DataFrame
) -> list[MachineFigures]:
    """Every host of an arm, by its records and its ``host_use``, in the order of their names; empty
    where nothing was read.
    """
    if not len(host_use):
        return []
    good = [record for record in records if record.status == "ok"]
    sync = [
        (record.launch, block.turn)
        for record in good
        for block in record.blocks
        if block.kind == "sync"
    ]
    counted = host_use.merge(
        pd.DataFrame(sync, columns=PLACE).astype({"launch": "int64", "turn": "Int32"}), on=PLACE
    )
    cores = host_use[host_use["measure"] == "core_busy_s"].groupby("host")["of"].nunique()
    return [_host(host, use, int(cores.get(host, 0))) for host, use in counted.groupby("host")]


def _host(host: Any, use: pd.DataFrame, cores: int) -> MachineFigures:
    values = use.groupby(["measure", "of"])["value"]
    sums, most = values.sum(), values.max()
    gpus = values.mean().groupby("measure").mean()
    per_s = sums / float(sums["wall_s", ""])
    slowed_by = use.loc[use["measure"] == "gpu_slowed_by", "value"].astype("int64")
    return MachineFigures(
        host=host,
        cores=cores,
        busy_cores=per_s["busy_s", ""],
        memory_used_bytes=int(most["memory_used_bytes", ""]),
        memory_bytes=int(most["memory_bytes", ""]),
        sent_bytes_per_s={
            str(name): per_s["sent_bytes", name]
            for name in use.loc[use["measure"] == "sent_bytes", "of"].unique()
        },
        power_w=sum(float(per_s[name].sum()) for name in ENERGIES if name in per_s) or None,
        gpu_utilisation=gpus.get("gpu_utilisation"),
        gpu_mhz=gpus.get("gpu_sm_mhz"),
        gpu_slowed_by=list(
            dict.fromkeys(why for bit, why in SLOWED_BY.items() if (slowed_by & bit).any())
        ),
    )


def energy_per_sample_j(
    machine: Sequence[MachineFigures], throughput: Estimate | None
) -> float | None:
    """Joules that all hosts together take for a sample; None where one of them does not report
    it.
    """
    powers = [host.power_w for host in machine]
    if throughput is None or not powers or None in powers:
        return None
    return sum(filter(None, powers)) / throughput.value


def summarise_links(plan: Plan, records: Sequence[LaunchRecord]) -> list[LinkFigures]:
    """An arm's bytes per step and host, averaged over all blocks that count, with hosts in the
    order of their ranks.

    Empty where no bytes were counted, or no block was without exchange.
    """
    good = [record for record in records if record.status == "ok" and record.ranks]
    blocks = [block for record in good for block in record.blocks if block.link_bytes]
    if {block.kind for block in blocks} != {"sync", "local"}:
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
            needed_bytes=needed_bytes,
        )
        for host, needed_bytes in needed.items()
        if host in blocks[0].link_bytes
    ]


def ring_bytes(hosts: Sequence[str], size: float) -> dict[str, float]:
    """What each host must send to others in a ring all_reduce of ``size`` bytes.

    ``hosts``: of each rank, by rank.
    """
    number = len(hosts)
    crossings = dict.fromkeys(hosts, 0)
    for rank, host in enumerate(hosts):
        crossings[host] += hosts[(rank + 1) % number] != host
    return {host: count * 2 * (number - 1) / number * size for host, count in crossings.items()}


def share_sent(options: Mapping[str, object]) -> float:
    """The share of the gradients' bytes that an arm with these options exchanges: compression
    halves it.
    """
    return 0.5 if HALVING & {options.get("comm_hook"), options.get("compression")} else 1.0


def _per_step(blocks: Sequence[BlockRecord], host: str, way: int, *, warmup: int) -> float:
    """Mean bytes per step of blocks with exchange less those of blocks without; ``way`` is 0 for
    sent, 1 for received.
    """
    sync, local = (
        [block for block in blocks if block.kind == kind and host in block.link_bytes]
        for kind in ("sync", "local")
    )
    nothing = statistics.fmean(block.link_bytes[host][way] for block in local)
    return statistics.fmean(
        (block.link_bytes[host][way] - nothing) / (block.steps + warmup) for block in sync
    )
