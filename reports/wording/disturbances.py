"""What weakens a verdict, in words: stalls, load, a late rank, and too few launches or runs; with
what to do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from measurement.host import crowded_warning
from measurement.records.record import LaunchRecord, Manifest, RankReport
from reports.conclusions.machine import MIN_FOREIGN_SHARE, is_quiet
from reports.schema import ArmSummary, LoadFigures, RatioSummary
from reports.wording.causes import NAMES
from reports.wording.formatting import (
    bounds_text,
    count,
    milliseconds,
    percent,
)


def elsewhere_lines(manifest: Manifest) -> list[str]:
    """Launches that a user measured in another environment than the first."""
    return [
        f"Launch{'es' if len(other.launches) > 1 else ''}"
        f" {', '.join(map(str, sorted(other.launches)))} (counted from 0) ran in another"
        f" environment than the rest (--resume-elsewhere): {'; '.join(other.differences)}; ratios"
        " of both are mixed"
        for other in manifest.elsewhere
        if other.launches
    ]


MIN_STALL_SHARE = 0.005
"""Arms whose stalls took less than this share of their time are not mentioned."""
MIN_CORE_WAIT_SHARE = 0.1
"""Training threads that wait for a core for less of their step are not mentioned."""
PAGE_FAULT_S = 1e-6
"""The least cost of a minor page fault: entering the kernel and clearing 4 KiB."""
MIN_FAULT_SHARE = 0.03
"""Page faults are mentioned where, at that cost, they are this share of an arm's step in a
launch."""


def stall_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """One sentence on the stalls of all arms, where those of any arm matter."""
    stalls = {arm.name: arm.stalls for arm in arms if arm.stalls and arm.stalls.count}
    if all(figures.share < MIN_STALL_SHARE for figures in stalls.values()):
        return []
    shares = [
        f"{name} {count(figures.count, 'step')}, {figures.share:.1%} of its time"
        f" (the longest {milliseconds(figures.longest_s)} ms)"
        for name, figures in stalls.items()
    ]
    return [f"Steps far longer than an arm's others: {'; '.join(shares)}"]


def skipped_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """One sentence for each arm whose optimizer took no step in timed ones."""
    return [
        f"{arm.name} skipped {arm.skipped_steps} timed steps, whose gradients overflowed in fp16:"
        " their blocks do not count, since a skipped step is shorter"
        for arm in arms
        if arm.skipped_steps
    ]


def straggler_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """One sentence for each arm in which a rank persistently holds the others up."""
    return [
        f"Rank {late.rank}{f' on {late.host}' if late.host else ''} is a straggler in {arm.name}:"
        f" its own time is {milliseconds(late.late_s)} ms a step longer"
        f" ({bounds_text(late.ci_low, late.ci_high, milliseconds)}), most of it in"
        f" {NAMES[late.phase]}"
        for arm in arms
        if arm.by_rank and (late := arm.by_rank.straggler)
    ]


def script_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """One sentence for each arm whose script did something else between its steps, or came to its
    end.
    """
    gaps = [
        f"{arm.name}: {arm.gaps.count} long gaps in its steps, {milliseconds(arm.gaps.typical_s)}"
        f" ms each (median; the longest {milliseconds(arm.gaps.longest_s)} ms), such as evaluations"
        " or checkpoints; they count, unless the arm has 'untimed: evaluation'"
        for arm in arms
        if arm.gaps
    ]
    return gaps + [
        f"{arm.name} came to its own end and was restarted, {arm.script_starts} times in one launch"
        for arm in arms
        if arm.script_starts > 1
    ]


def floor_lines(records: Sequence[LaunchRecord]) -> list[str]:
    """One sentence if the floor could not be measured."""
    failed = [record for record in records if record.role == "floor" and record.status != "ok"]
    if not failed:
        return []
    message = failed[0].error.message if failed[0].error else failed[0].status
    launches = count(len(failed), "launch", "launches")
    return [
        "The no-op backend (the floor: the same loop without any exchange or library) failed in"
        f" {launches}, where overhead is part of computing: {message}"
    ]


def oversubscription_warning(ranks: Sequence[RankReport]) -> str | None:
    """That ranks on CPUs share cores, where they do."""
    if not ranks or any(rank.device != "cpu" for rank in ranks):
        return None
    cores = {(rank.host, core) for rank in ranks for core in rank.affinity}
    return crowded_warning(len(ranks), len(cores) or None)


def load_sentence(load: LoadFigures | None) -> str | None:
    """That the machine was not quiet; None where it was, or where nothing is known.

    ``load``: over the blocks of all arms.
    """
    if load is None or is_quiet(load):
        return None
    return (
        f"The machine was not quiet: in {load.disturbed_share:.0%} of the blocks others took"
        f" {percent(MIN_FOREIGN_SHARE)} or more of the ranks' cores (over all blocks other"
        f" processes {load.foreign_share:.1%}, other guests of a hypervisor"
        f" {load.steal_share:.1%})"
    )


def core_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """The arms whose training threads wait long for a core, in one sentence; empty without any."""
    waits = [
        f"{arm.name} {milliseconds(threads.runnable_s.value)} ms"
        for arm in arms
        if (threads := arm.threads_s.get("sync"))
        and threads.runnable_s.value >= MIN_CORE_WAIT_SHARE * arm.step_time_s.get("p50", math.inf)
    ]
    return [
        f"Training threads waited for a core in each step: {', '.join(waits)}. With a core to spare"
        " for each rank, ratios may differ: see 'Who had the core'"
    ] * bool(waits)


def page_fault_lines(arms: Sequence[ArmSummary], *, freed_memory: str) -> list[str]:
    """That steps fault in pages, and what to do about it; none where they are few, or freed memory
    is kept.

    ``freed_memory``: the plan's.
    """
    most = {arm.name: arm.page_faults for arm in arms if arm.page_faults is not None}
    matter = any(
        most.get(arm.name, 0.0) * PAGE_FAULT_S >= MIN_FAULT_SHARE * arm.step_time_s["p50"]
        for arm in arms
        if arm.step_time_s
    )
    if freed_memory == "keep" or not matter:
        return []
    counts = ", ".join(f"{name} up to {faults:,.0f}" for name, faults in most.items())
    return [
        f"Page faults per step, since malloc returns freed memory to the kernel: {counts}."
        " They cost time, and make launches differ. Trainings that keep freed memory"
        " (MALLOC_MMAP_MAX_=0, MALLOC_TRIM_THRESHOLD_=1099511627776) may be faster and vary less;"
        " 'freed_memory: keep' in the plan, or --set freed_memory=keep, compares those"
    ]


def run_lines(results: Sequence[RatioSummary]) -> list[str]:
    """What the order of a candidate's runs may hide."""
    return [
        f"All runs of one of {result.candidate} and {result.baseline} came before all of the other:"
        " a machine that became slower or faster meanwhile would look the same as a difference"
        " between them; let runs alternate"
        for result in results
        if result.run_order == "one after the other" and result.case is None
    ]
