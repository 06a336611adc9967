"""The machine while blocks ran: what disturbed the measuring, and what each host did for whichever
process.

Foreign load: what processes that are not the arm's took of its ranks' cores, block by block. Load
hurts backends unlike: one whose background thread needs a core loses more than one that waits in
the kernel. So blocks that others disturbed are marked, and where they are many a verdict must hold
without them, too.

Stalls: steps far longer than an arm's others. They count in every throughput and ratio; here they
are counted and measured. A stall is a step (by its slowest rank) of more than twice the launch's
median that is also further from it than ten times the median absolute deviation, so that a launch
whose steps vary widely has none. What a stall takes is its time beyond the median.

Page faults: glibc's malloc gives large blocks back to the kernel when they are freed, and a step
that allocates them again faults in each of their pages. How many do so depends on where memory
happens to lie in a launch, for as long as it lasts.

What a host did is read outside the ranks before and after each block, so that it contains the
block's untimed steps. Power times time is energy; divided by the throughput of the same blocks it
is the energy of a sample.

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

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from measurement.environment import KEEP_FREED_MEMORY, Disturbance, Library, disturbances
from measurement.plans.plan import Plan
from measurement.records.block import SLOWED_BY, BlockRecord
from measurement.records.record import LaunchRecord
from reports.conclusions.steps import TURN
from reports.schema import (
    Estimate,
    GapFigures,
    LinkFigures,
    LoadFigures,
    MachineFigures,
    StallFigures,
)

MIN_FOREIGN_SHARE = 0.10
"""A block is disturbed if others took this share of its ranks' cores, a hypervisor's other guests
included, and that is more than the kernel's ticks may be wrong by."""
ERROR_QUANTILE, TIMES_ERROR = 0.05, 2.0
"""A twentieth of the blocks seem to lose less than nothing by an error or more; twice that error is
3.3 standard deviations."""
MAX_DISTURBED_SHARE = 0.05
"""With a larger share of disturbed blocks the machine counts as not quiet."""
TIMES_MEDIAN = 2.0
TIMES_DEVIATION = 10.0
MIN_STALLS = 10
"""With fewer stalls in all launches together, how often they come is not known well enough for a
verdict."""
SHARES = ["foreign_share", "steal_share", "other_threads_share"]
THREADS = ["running_s", "runnable_s", "library_s", "others_s"]
"""Fields of ``measurement.records.block.ThreadTimes``."""
BLOCK_FIELDS = ["turn", "round", "steps", "skipped_steps"]
COUNTERS: dict[str, Any] = {
    "launch": "int64",
    "arm": str,
    "is_ok": bool,
    "kind": str,
    **dict.fromkeys(BLOCK_FIELDS, "int64"),
    **dict.fromkeys([*SHARES, "page_faults", *THREADS], "float64"),
}
PLACE = ["launch", "turn"]
ENERGIES = ("energy_j", "gpu_energy_j")
"""What processor packages took (RAPL), and GPUs (NVML)."""
HALVING = {"fp16", "bf16"}
"""Values of DDP's ``comm_hook`` and Horovod's ``compression`` with which half of the bytes are
exchanged."""


def inherited_variables(
    plan: Plan, records: Sequence[LaunchRecord]
) -> dict[str, list[Disturbance]]:
    """By arm, variables that its ranks had and that disturb; of what the plan sets only what is
    refused elsewhere.
    """
    by_arm: dict[str, dict[str, Disturbance]] = {}
    kept = KEEP_FREED_MEMORY.keys() if plan.freed_memory == "keep" else ()
    for record in (record for record in records if record.role != "floor"):
        chosen = {*plan.environment, *record.environment, *kept}
        inherited = by_arm.setdefault(record.arm, {})
        for rank in record.ranks:
            named = rank.backend.get("library", record.backend)
            libraries: set[Library] = {"horovod" if named == "horovod" else "torch.distributed"}
            if rank.device != "cpu":
                libraries.add("cuda")
            inherited |= {
                variable.name: variable
                for variable in disturbances(rank.environment, libraries)
                if variable.name not in chosen or variable.variable.is_refused
            }
    return {arm: list(inherited.values()) for arm, inherited in by_arm.items()}


def tabulate_counters(records: Sequence[LaunchRecord]) -> pd.DataFrame:
    """What was counted over every block: columns ``COUNTERS``, NaN where not known, and whether it
    was ``disturbed``.

    Shares are of the ranks' cores; ``is_ok`` is the launch's. A block is disturbed from
    ``least_share`` on. The kernel counts a core's time by sampling it at each tick, so a short
    block's share is uncertain; as nobody takes less than nothing, shares below 0 show by how much.
    """
    rows = [
        {"launch": record.launch, "arm": record.arm, "is_ok": record.status == "ok"}
        | {name: getattr(block, name) for name in ("kind", *BLOCK_FIELDS, *SHARES, "page_faults")}
        | {name: getattr(block.threads, name, None) for name in THREADS}
        for record in records
        for block in record.blocks
    ]
    table = pd.DataFrame(rows, columns=list(COUNTERS)).astype(COUNTERS)
    table["steal_share"] = table["steal_share"].fillna(0.0)
    error = -float(table["foreign_share"].quantile(ERROR_QUANTILE))  # NaN where nothing is known
    least = max(MIN_FOREIGN_SHARE, round(TIMES_ERROR * error, 2))
    taken = table["foreign_share"] + table["steal_share"]
    return table.assign(least_share=least, disturbed=taken > least)


def summarise_load(counters: pd.DataFrame) -> LoadFigures | None:
    """The load over these blocks; None where it is known of none."""
    with_load = counters[counters["foreign_share"].notna()]
    if not len(with_load):
        return None
    columns = [*SHARES, "least_share", "disturbed"]
    means = with_load[columns].mean().rename({"disturbed": "disturbed_share"})
    return LoadFigures.model_validate({**means.dropna(), "blocks": len(with_load)})


def is_quiet(load: LoadFigures | None) -> bool:
    """Whether so few blocks were disturbed that the figures hold; true where nothing is known."""
    return load is None or load.disturbed_share <= MAX_DISTURBED_SHARE


def undisturbed(blocks: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """The blocks without those that were disturbed."""
    hit = pd.MultiIndex.from_frame(counters.loc[counters["disturbed"], TURN])
    return blocks[~pd.MultiIndex.from_frame(blocks[TURN]).isin(hit)]


def find_stalls(slowest: pd.DataFrame) -> pd.DataFrame:
    """The stalls among synchronised steps, from each step's slowest rank (``Steps.slowest``).

    Returns:
        ``launch, arm, turn, step_s`` and ``stall_s``, the time beyond the launch's median step.
    """
    sync = slowest[slowest["kind"] == "sync"]
    launch = [sync["launch"], sync["arm"]]
    median = sync["step_s"].groupby(launch).transform("median")
    beyond = sync["step_s"] - median
    deviation = beyond.abs().groupby(launch).transform("median")
    is_stall = (sync["step_s"] > TIMES_MEDIAN * median) & (beyond > TIMES_DEVIATION * deviation)
    return sync.assign(stall_s=beyond)[is_stall][[*TURN, "step_s", "stall_s"]]


def without_stalls(blocks: pd.DataFrame, stalls: pd.DataFrame) -> pd.DataFrame:
    """The blocks as if each stall had been a median step.

    Not for verdicts: it shows what the stalls cost.
    """
    lost = stalls.groupby(TURN, as_index=False)["stall_s"].sum()
    merged = blocks.merge(lost, on=TURN, how="left")
    block_s = merged["block_s"] - merged["stall_s"].fillna(0.0)
    return merged.assign(block_s=block_s, throughput_per_s=merged["samples"] / block_s)


def summarise_stalls(stalls: pd.DataFrame, sync: pd.DataFrame) -> StallFigures:
    """One arm's stalls in its synchronised blocks, at least one."""
    return StallFigures(
        count=len(stalls),
        share=float(stalls["stall_s"].sum() / sync["block_s"].sum()),
        longest_s=float(stalls["step_s"].max()) if len(stalls) else None,
    )


def summarise_gaps(records: Sequence[LaunchRecord]) -> GapFigures | None:
    """The long gaps between the steps of one arm's script, of launches that count; None without
    any.
    """
    gaps = sorted(
        seconds
        for record in records
        if record.status == "ok"
        for block in record.blocks
        for _, seconds in block.gaps
    )
    if not gaps:
        return None
    return GapFigures(
        count=len(gaps),
        seconds=math.fsum(gaps),
        typical_s=statistics.median(gaps),
        longest_s=gaps[-1],
    )


def most_page_faults(counters: pd.DataFrame) -> float | None:
    """One arm's page faults in a synchronised step, of the launch that has most; None where not
    counted.
    """
    counted = counters[(counters["kind"] == "sync") & counters["page_faults"].notna()]
    if not len(counted):
        return None
    sums = counted.groupby("launch")[["page_faults", "steps"]].sum()
    return float((sums["page_faults"] / sums["steps"]).max())


def summarise_machine(
    records: Sequence[LaunchRecord], host_use: pd.DataFrame
) -> list[MachineFigures]:
    """Every host of an arm, by its records and its ``host_use``, in the order of their names; empty
    where nothing was read.
    """
    sync = [
        (record.launch, block.turn)
        for record in records
        for block in record.blocks
        if record.status == "ok" and block.kind == "sync"
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
    first = good[0]
    ranks = {place.rank: place.host for place in first.ranks}
    size = int(first.ranks[0].model.get("gradient_bytes", 0))
    needed = ring_bytes([ranks[rank] for rank in sorted(ranks)], size * share_sent(first.options))
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
