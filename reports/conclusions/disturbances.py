"""What disturbed the measuring: foreign load block by block, stalls, and page faults launch by
launch.

Foreign load: what processes that are not the arm's took of its ranks' cores, block by block.

Load hurts backends unlike: one whose background thread needs a core loses more than one that waits
in the kernel. So blocks that others disturbed are marked, and where they are many a verdict must
hold without them, too.

Stalls: steps far longer than an arm's others. They count in every throughput and ratio; here they
are counted and measured.

A stall is a step (by its slowest rank) of more than twice the launch's median that is also further
from it than ten times the median absolute deviation, so that a launch whose steps vary widely has
none. What a stall takes is its time beyond the median.

Page faults: glibc's malloc gives large blocks back to the kernel when they are freed, and a step
that allocates them again faults in each of their pages. How many do so depends on where memory
happens to lie in a launch, for as long as it lasts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import pandas as pd

from measurement.environment import KEEP_FREED_MEMORY, Disturbance, Library, disturbances
from measurement.plans.plan import Plan
from measurement.records.record import LaunchRecord
from reports.schema import GapFigures, LoadFigures, StallFigures

MIN_FOREIGN_SHARE = 0.10
"""A block is disturbed if others took this share of its ranks' cores, a hypervisor's other guests
included."""
MAX_DISTURBED_SHARE = 0.05
"""With a larger share of disturbed blocks the machine counts as not quiet."""
TIMES_MEDIAN = 2.0
TIMES_DEVIATION = 10.0
MIN_STALLS = 10
"""With fewer stalls in all launches together, how often they come is not known well enough for a
verdict."""
TURN = ["launch", "arm", "turn"]
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
            libraries |= set() if rank.device == "cpu" else {"cuda"}
            variables = disturbances(rank.environment, libraries)
            inherited |= {
                variable.name: variable
                for variable in variables
                if variable.name not in chosen or variable.variable.is_refused
            }
    return {arm: list(inherited.values()) for arm, inherited in by_arm.items()}


def tabulate_counters(records: Sequence[LaunchRecord]) -> pd.DataFrame:
    """What was counted over every block: columns ``COUNTERS``, NaN where not known, and whether it
    was ``disturbed``.

    Shares are of the ranks' cores; ``is_ok`` is the launch's.
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
    return table.assign(disturbed=table["foreign_share"] + table["steal_share"] > MIN_FOREIGN_SHARE)


def summarise_load(counters: pd.DataFrame) -> LoadFigures | None:
    """The load over these blocks; None where it is known of none."""
    with_load = counters[counters["foreign_share"].notna()]
    if not len(with_load):
        return None
    means = with_load[[*SHARES, "disturbed"]].mean().rename({"disturbed": "disturbed_share"})
    known = {name: None if math.isnan(mean) else mean for name, mean in means.items()}
    return LoadFigures.model_validate(known | {"blocks": len(with_load)})


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
    shorter = merged["block_s"] - merged["stall_s"].fillna(0.0)
    return merged.assign(block_s=shorter, throughput_per_s=merged["samples"] / shorter).drop(
        columns="stall_s"
    )


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
