"""What weakens a verdict, in words: stalls, load, a late rank, and too few launches or runs; with
what to do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from measurement.probes.fingerprint import crowded_warning
from measurement.records.record import LaunchRecord, Manifest, RankReport
from reports.conclusions.disturbances import MIN_FOREIGN_SHARE, MIN_STALLS, is_quiet
from reports.schema import ArmSummary, LoadFigures, PageFaults, RatioSummary, StallFigures
from reports.wording.formatting import (
    PHASE_NAMES,
    bounds_text,
    count,
    difference_text,
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
MIN_LOAD_SHARE = 0.02
"""Arms of whose cores others took less than this share are not mentioned."""
MIN_CORE_WAIT_SHARE = 0.1
"""Training threads that wait for a core for less of their step are not mentioned."""
PAGE_FAULT_S = 1e-6
"""The least cost of a minor page fault: entering the kernel and clearing 4 KiB."""
MIN_FAULT_SHARE = 0.03
"""Page faults are mentioned where, at that cost, they are this share of an arm's step in a
launch."""


def stall_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """One sentence for each arm whose stalls matter, with what the baseline and its control show in
    the same launches.
    """
    by_arm = {arm.name: arm.stalls for arm in arms if arm.stalls}
    quiet = {
        arm.name: by_arm[arm.name]
        for arm in arms
        if arm.role in ("baseline", "control") and arm.name in by_arm
    }
    lines = []
    for name, stalls in by_arm.items():
        if stalls.share < MIN_STALL_SHARE:
            continue
        others = [
            f"{other} {_stall_share(figures)}" for other, figures in quiet.items() if other != name
        ]
        rarity = (
            f"; with fewer than {MIN_STALLS}, how often they come cannot be estimated"
            if stalls.count < MIN_STALLS
            else ""
        )
        longest = milliseconds(stalls.longest_s)
        lengths = (
            f"of {milliseconds(stalls.typical_s)} ms each (median; the longest {longest} ms)"
            if stalls.count > 1
            else f"of {longest} ms"
        )
        lines.append(
            f"{name} stalled: {_stall_share(stalls)}, {lengths}{rarity}"
            + (f" ({'; '.join(others)})" if others else "")
        )
    return lines


def _stall_share(stalls: StallFigures) -> str:
    """Such as ``41 steps, 3.1% of its time``."""
    return f"{count(stalls.count, 'step')}, {stalls.share:.1%} of its time"


def skipped_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """One sentence for each arm whose optimizer took no step in timed ones."""
    return [
        f"{arm.name} skipped {arm.skipped_steps} timed steps, whose gradients overflowed in fp16:"
        " their blocks do not count, since a skipped step is shorter"
        for arm in arms
        if arm.skipped_steps
    ]


def restart_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """One sentence if the workload's batches came to an end while steps were timed."""
    counts = [f"{arm.restarts} times in {arm.name}" for arm in arms if arm.restarts]
    if not counts:
        return []
    return [
        "the workload's batches ended in timed steps and were restarted, as at the end of an"
        f" epoch: {', '.join(counts)}"
    ]


OWN_TIMES: dict[str, str] = {
    "local step": "its steps without exchange",
    "data wait and forward": "its data wait and forward",
}
"""By ``ByRank.own_time``."""


def straggler_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """One sentence for each arm in which a rank persistently holds the others up."""
    stragglers = [
        (arm.name, arm.by_rank, arm.by_rank.straggler)
        for arm in arms
        if arm.by_rank and arm.by_rank.straggler
    ]
    return [
        f"Rank {late.rank}{f' on {late.host}' if late.host else ''} is a straggler in {name}:"
        f" {OWN_TIMES[ranks.own_time]} are {milliseconds(late.late_s)} ms longer"
        f" ({bounds_text(late.ci_low, late.ci_high, milliseconds)}), most of it in"
        f" {PHASE_NAMES[late.phase]}"
        for name, ranks, late in stragglers
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
        f" processes {_share(load.foreign_share)}, other guests of a hypervisor"
        f" {_share(load.steal_share)})"
    )


def load_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """The arms that other processes affected, in one sentence; empty without any."""
    hit = {
        arm.name: arm.load
        for arm in arms
        if arm.load and arm.load.foreign_share + arm.load.steal_share >= MIN_LOAD_SHARE
    }
    if not hit:
        return []
    taken = {
        name: (_share(load.foreign_share + load.steal_share), load.disturbed_share)
        for name, load in hit.items()
    }
    listed_shares = ", ".join(
        f"{name} {share} ({disturbed:.0%} of its blocks disturbed)"
        for name, (share, disturbed) in taken.items()
    )
    return [
        f"Other processes took this share of the ranks' cores while the blocks ran: {listed_shares}"
    ]


def core_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """The arms whose training threads wait long for a core, and how long their library's threads
    ran, in one sentence; empty without any.
    """
    waits = []
    for arm in arms:
        threads, step_s = arm.threads_s.get("sync"), (arm.step_time_s or {}).get("p50", math.inf)
        if threads is None or threads.runnable_s.value < MIN_CORE_WAIT_SHARE * step_s:
            continue
        waited, ran = milliseconds(threads.runnable_s.value), milliseconds(threads.library_s.value)
        waits.append(f"{arm.name} {waited} ms, while its library's threads ran {ran} ms")
    return [
        f"Training threads waited for a core in each step: {'; '.join(waits)}. With a core to spare"
        " for each rank, ratios may differ: see 'Who had the core'"
    ] * bool(waits)


def page_fault_lines(arms: Sequence[ArmSummary], *, freed_memory: str) -> list[str]:
    """That steps fault in pages, arm by arm, and what to do about it; none where they are few, or
    freed memory is kept.

    ``freed_memory``: the plan's.
    """
    by_arm = {
        arm.name: (arm.page_faults, arm.step_time_s)
        for arm in arms
        if arm.page_faults and arm.step_time_s
    }
    matter = any(
        faults.most * PAGE_FAULT_S >= MIN_FAULT_SHARE * step_s["p50"]
        for faults, step_s in by_arm.values()
    )
    if freed_memory == "keep" or not matter:
        return []
    counts = ", ".join(f"{name} {_by_launch(faults)}" for name, (faults, _) in by_arm.items())
    return [
        "Page faults per step, by launch, since malloc returns freed memory to the kernel:"
        f" {counts}. They cost time, and make launches differ. Trainings that keep freed memory"
        " (MALLOC_MMAP_MAX_=0, MALLOC_TRIM_THRESHOLD_=1099511627776) may be faster and vary less;"
        " 'freed_memory: keep' in the plan, or --set freed_memory=keep, compares those"
    ]


def _by_launch(faults: PageFaults) -> str:
    """Such as ``120 to 9,100``."""
    fewest, most = f"{faults.fewest:,.0f}", f"{faults.most:,.0f}"
    return fewest if fewest == most else f"{fewest} to {most}"


def _share(value: float) -> str:
    return f"{max(value, 0.0):.1%}"


MIN_RUNS = 5
"""Runs of each arm; from fewer, the variance is poorly estimated."""


def run_lines(results: Sequence[RatioSummary]) -> list[str]:
    """For each candidate the smallest difference that its runs could have shown, and what the order
    of the runs may hide.
    """
    lines = []
    for result in results:
        if result.run_order is None or result.case is not None:
            continue
        if result.ci_low is not None and result.ci_high is not None:
            smallest = math.exp(math.log(result.ci_high / result.ci_low) / 2)
            paired = (
                "in pairs, since they alternated"
                if result.run_order == "alternating"
                else "unpaired"
            )
            lines.append(
                f"{result.candidate}: the smallest difference from {result.baseline} that these"
                f" runs could have shown is {difference_text(smallest)} ({paired})"
            )
        if result.run_order == "one after the other":
            lines.append(
                f"All runs of one of {result.candidate} and {result.baseline} came before all of"
                " the other: a machine that became slower or faster meanwhile would look the same"
                " as a difference between them; let runs alternate"
            )
        if 2 < result.launches < MIN_RUNS:
            lines.append(
                f"{result.candidate}: {result.launches} runs of each estimate the variance poorly;"
                f" make {MIN_RUNS} or more"
            )
    return lines
