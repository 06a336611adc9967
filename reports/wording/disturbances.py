"""What weakens the figures, in words: what the control says, stalls, load, a late rank, and runs in
one order; with what to do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from measurement.host import crowded_warning
from measurement.records.record import LaunchRecord, Manifest, RankReport
from reports.conclusions.machine import is_quiet
from reports.conclusions.ratios import farthest, is_wide
from reports.schema import ArmSummary, LoadFigures, RatioSummary
from reports.wording.causes import NAMES
from reports.wording.formatting import (
    bounds_text,
    count,
    difference_text,
    interval_words,
    milliseconds,
    percent,
    ratio,
)

MAX_NAMED = 3
"""Cases that a sentence names."""
MIN_STALL_SHARE = 0.005
"""Arms whose stalls took less than this share of their time are not mentioned."""
MIN_CORE_WAIT_SHARE = 0.1
"""Training threads that wait for a core for less of their step are not mentioned."""
PAGE_FAULT_S = 1e-6
"""The least cost of a minor page fault: entering the kernel and clearing 4 KiB."""
MIN_FAULT_SHARE = 0.03
"""Page faults are mentioned where, at that cost, they are this share of an arm's step in a
launch."""


def control_sentence(results: Sequence[RatioSummary]) -> str:
    """What the comparison of the baseline with itself says."""
    control = next((result for result in results if result.role == "control"), None)
    if control is None:
        return "No A/A control was run: nothing checks that equal arms come out equal"
    if control.case is not None:
        return _control_by_case([result for result in results if result.role == "control"])
    if control.ci_low is None or control.ci_high is None:
        return (
            f"The A/A control gives no interval ({interval_words(control)}): nothing checks that"
            " equal arms come out equal"
        )
    figures, within = interval_words(control), reach_words(control)
    if control.control_failed:
        return (
            f"The A/A control failed: {control.baseline} against itself differs ({figures}), "
            f"so no difference below {within} is claimed"
        )
    if is_wide(control.ratio):
        wide = f"The A/A control's interval is so wide that it checks nothing below {within}"
        return f"{wide}: {control.baseline} against itself ({figures})"
    return f"A/A control: {control.baseline} against itself shows no difference ({figures})"


def reach_words(control: RatioSummary) -> str:
    """How far its interval reaches from 1 either way, such as ``5.2%``."""
    return difference_text(math.exp(farthest(control.ratio)))


def _control_by_case(controls: Sequence[RatioSummary]) -> str:
    """In how many cases the baseline comes out equal to itself, and in which not."""
    with_interval = [control for control in controls if control.ci_low is not None]
    if not with_interval:
        return "The A/A control gives no interval: nothing checks that equal arms come out equal"
    failed = [
        f"{control.case} {ratio(control.throughput_ratio)}"
        for control in with_interval
        if control.control_failed
    ]
    chance = percent(round(1 - with_interval[0].confidence, 6))
    if failed:
        named = ", ".join(failed[:MAX_NAMED]) + (", ..." if len(failed) > MAX_NAMED else "")
        return (
            f"The A/A control failed in {len(failed)} of {len(with_interval)} cases ({named};"
            f" {chance} of them would by chance), where no smaller difference is claimed"
        )
    wide = sum(is_wide(control.ratio) for control in with_interval)
    but = f"; in {wide} of them its interval is too wide to check much" if wide else ""
    return (
        f"A/A control: {with_interval[0].baseline} against itself shows no difference in all"
        f" {len(with_interval)} cases{but}"
    )


def by_speed_lines(results: Sequence[RatioSummary]) -> list[str]:
    """Ratios that move with the machine's speed; at another time they come out otherwise."""
    return [
        f"The ratio of {result.candidate} depends on the machine's speed, and may be another at"
        f" another time: {ratio(dependence.slower)} in the slower half of the launches,"
        f" {ratio(dependence.faster)} in the faster half. By the control, the fastest launch was"
        f" {difference_text(dependence.speeds)} faster than the slowest"
        for result in results
        if (dependence := result.by_speed) is not None
    ]


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
        f" beside other ranks and arms its own time is {milliseconds(late.late_s)} ms a step longer"
        f" ({bounds_text(late.ci_low, late.ci_high, milliseconds)}), most of it in"
        f" {NAMES[late.phase]}"
        for arm in arms
        if arm.by_rank and (late := arm.by_rank.straggler)
    ]


def script_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """What scripts did besides their steps: long gaps, and coming to their end; a sentence each."""
    gaps = [
        f"{arm.name} {arm.gaps.count} of {milliseconds(arm.gaps.typical_s)} ms (median; the longest"
        f" {milliseconds(arm.gaps.longest_s)} ms)"
        for arm in arms
        if arm.gaps
    ]
    starts = [f"{arm.name} {arm.script_starts}" for arm in arms if arm.script_starts > 1]
    return [
        f"Long gaps between steps, such as evaluations or checkpoints: {'; '.join(gaps)}. They"
        " count, unless an arm has 'untimed: evaluation'"
    ] * bool(gaps) + [
        "Scripts came to their own end and were started again; starts in one launch, at the most:"
        f" {', '.join(starts)}"
    ] * bool(starts)


def floor_lines(records: Sequence[LaunchRecord]) -> list[str]:
    """One sentence if the floor could not be measured."""
    failed = [
        record.error.message if record.error else record.status
        for record in records
        if record.role == "floor" and record.status != "ok"
    ]
    launches = count(len(failed), "launch", "launches")
    return [
        "The no-op backend (the floor: the same loop without any exchange or library) failed in"
        f" {launches}, where overhead is part of computing: {message}"
        for message in failed[:1]
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
        f" {percent(load.least_share)} or more of the ranks' cores (over all blocks other"
        f" processes {max(load.foreign_share, 0.0):.1%}, other guests of a hypervisor"
        f" {load.steal_share:.1%})"
    )


def core_lines(arms: Sequence[ArmSummary]) -> list[str]:
    """How long training threads wait for a core, in one sentence, if those of any arm wait long."""
    waits = {
        arm.name: threads.runnable_s.value
        for arm in arms
        if (threads := arm.threads_s.get("sync")) and arm.step_time_s
    }
    if not any(
        waits.get(arm.name, 0.0) >= MIN_CORE_WAIT_SHARE * arm.step_time_s.get("p50", math.inf)
        for arm in arms
    ):
        return []
    each = ", ".join(f"{name} {milliseconds(wait_s)} ms" for name, wait_s in waits.items())
    return [
        f"Training threads waited for a core in each step: {each}. With a core to spare for each"
        " rank, ratios may differ: see 'Who had the core'"
    ]


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
