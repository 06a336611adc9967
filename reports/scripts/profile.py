"""Where the step of one script goes, what of it need not be, and what to try (``ringside run``);
and how much of a difference a setting explains that was tried (``ringside ab --explain``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from measurement.conditions.differences import shown
from measurement.records.block import PHASES
from measurement.records.record import LaunchRecord
from reports.conclusions.steps import copies_of_baseline, means_by_rank, total_tables
from reports.conclusions.summaries import Evidence
from reports.parts_schema import Estimate
from reports.schema import ArmSummary, Explanation, Profile, RankProfile, RatioSummary
from reports.scripts.script_arms import ScriptArm
from reports.statistics.intervals import log_ratios
from reports.statistics.student import ratio_of_means, t_interval
from reports.wording.disturbances import straggler_lines
from reports.wording.formatting import bounds_text, count, milliseconds, percent, share

CONFIDENCE = 0.99
"""Confidence from which a slowdown in the course of a launch is reported."""
MIN_SHARE = 0.1
"""What takes a smaller share of a step is not reported."""
WORKERS = "loader.workers"
THREADS = "threads.torch"
BUCKET = "ddp.bucket_cap_mb"
USUAL_BUCKET_MB = 25
"""DDP's default."""
MIN_BLOCKS = 2
"""Blocks that a third of a launch must have."""


def profile_of(evidence: Evidence, arm: ArmSummary) -> Profile | None:
    """Where the step of a plan's only arm goes; None where the plan compares, and where nothing was
    timed.
    """
    blocks = evidence.steps.where(arm=arm.name, kind="sync").rank_blocks
    if not evidence.plan.is_alone or not len(blocks):
        return None
    tables = means_by_rank(blocks, ["step_s", *(f"{phase}_s" for phase in PHASES)])
    means = pd.DataFrame({name: table.mean() for name, table in tables.items()}).to_dict("index")
    hosts = {place.rank: place.host for record in evidence.records for place in record.ranks}
    ranks = [
        RankProfile.model_validate(
            {"rank": rank, "host": hosts.get(int(str(rank)), ""), "step_s": times["step_s"]}
            | {"phases_s": {phase: times[f"{phase}_s"] for phase in PHASES}}
        )
        for rank, times in means.items()
    ]
    first_rank = blocks[blocks["rank"] == blocks["rank"].min()]
    drift = _drift(first_rank)
    step_s = max(rank.step_s for rank in ranks)
    costs = sorted(
        _findings(arm, ranks, drift, steps=int(first_rank["steps"].sum())),
        key=lambda cost: -cost[0],
    )
    findings = [sentence for seconds, sentence in costs if seconds >= MIN_SHARE * step_s]
    waits = max(rank.phases_s["data_wait"] for rank in ranks) >= MIN_SHARE * step_s
    to_try = settings_to_try([record for record in evidence.records if record.arm == arm.name])
    return Profile(
        ranks=ranks,
        drift=drift,
        findings=findings,
        to_try={name: value for name, value in to_try.items() if waits or name != WORKERS},
    )


def settings_to_try(records: Sequence[LaunchRecord]) -> dict[str, Any]:
    """Settings that can be imposed and are no usual choice, with the value to try; by what a
    script's ranks report.
    """
    record = next((record for record in records if record.scripts), None)
    if record is None:
        return {}
    fields, tried = ScriptArm.of(record).fields, dict[str, Any]()
    on_host = [rank for rank in record.ranks if rank.host == record.ranks[0].host]
    cores = {core for rank in on_host for core in rank.affinity}
    each = max(1, len(cores) // len(on_host))
    if isinstance(workers := fields.get(WORKERS), int):
        tried[WORKERS] = max(2, 2 * workers)
    if (
        isinstance(threads := fields.get(THREADS), int)
        and cores
        and threads > each
        and record.ranks[0].device == "cpu"
    ):
        tried[THREADS] = each
    if isinstance(bucket := fields.get(BUCKET), int | float) and bucket < USUAL_BUCKET_MB:
        tried[BUCKET] = USUAL_BUCKET_MB
    return tried


def _findings(
    arm: ArmSummary, ranks: Sequence[RankProfile], drift: Estimate | None, *, steps: int
) -> Iterator[tuple[float, str]]:
    """What costs time, with seconds of a step."""
    step_s = max(rank.step_s for rank in ranks)
    late = arm.by_rank.straggler if arm.by_rank else None

    def part(seconds: float) -> str:
        return f"{milliseconds(seconds)} ms of each step ({share(seconds / step_s)})"

    starved = max(ranks, key=lambda rank: rank.phases_s["data_wait"])
    waited_s = starved.phases_s["data_wait"]
    yield waited_s, f"Rank {starved.rank} waits for data for {part(waited_s)}"
    is_horovods = arm.described.get("library") == "horovod"  # whose gradients are waited for there
    exchange_s = 0.0 if is_horovods else min(rank.phases_s["exchange"] for rank in ranks)
    yield exchange_s, f"All ranks wait for exchange for {part(exchange_s)}, outside of backward"
    for cause in arm.causes:
        seconds = cause.per_step_s.value
        yield seconds, f"{part(seconds)} is {cause.name}, in the first steps"
    if late is not None:
        yield late.late_s, straggler_lines([arm])[0]
    if threads := arm.threads_s.get("sync"):
        # else it is others that have the cores
        if arm.load is None or arm.load.foreign_share < MIN_SHARE:
            seconds = threads.runnable_s.value
            wait = f"wait for a core, for {part(seconds)}"
            yield seconds, f"The training threads are ready, and {wait}"
        if threads.others_s:
            seconds = threads.others_s.value
            yield seconds, f"Threads of the script's own run for {part(seconds)} on each rank"
    if arm.gaps:
        seconds, gaps = arm.gaps.seconds / steps, count(arm.gaps.count, "long gap")
        yield seconds, f"{part(seconds)} are {gaps}, such as evaluations or checkpoints"
    if drift is not None and drift.excludes(0.0):
        more = f"{percent(abs(drift.value))} {'longer' if drift.value > 0 else 'shorter'}"
        seconds = abs(drift.value) * step_s
        yield seconds, f"Steps take {more} at the end of a launch than at its start"


def _drift(blocks: pd.DataFrame) -> Estimate | None:
    """``blocks``: one rank's, with exchange."""
    shares = []
    for _, launch in blocks.groupby("launch"):
        each = (launch["step_s"] / launch["steps"]).to_numpy()
        third = len(each) // 3
        if third >= MIN_BLOCKS:
            shares.append(float(each[-third:].mean() / each[:third].mean() - 1))
    return t_interval(shares, confidence=CONFIDENCE)


def explanations(evidence: Evidence, results: Sequence[RatioSummary]) -> list[Explanation]:
    """One of each arm that is the baseline with a setting imposed on it, and each candidate that is
    not such an arm.

    The share is (a - c) / (a - b), where a, b and c are the seconds that a sample takes in the
    baseline, in the candidate, and in the baseline with the setting; over launches a ratio of means
    in units of a.
    """
    plan = evidence.plan
    tried = {
        name: arm.impose for name, arm in plan.arms.items() if arm.impose and name != plan.baseline
    }
    asked = [
        result for result in results if result.role == "candidate" and result.candidate not in tried
    ]
    confidence = evidence.confidence ** (1 / max(1, len(tried) * len(asked)))
    return [_explanation(evidence, name, result, confidence) for name in tried for result in asked]


def _explanation(
    evidence: Evidence, tried: str, result: RatioSummary, confidence: float
) -> Explanation:
    plan, candidate = evidence.plan, result.candidate
    groups = [[name, *copies_of_baseline(plan, name)] for name in (tried, candidate)]
    saved = [
        1 - np.exp(-log_ratios(tables)) for tables in total_tables(plan, evidence.blocks, groups)
    ]
    is_known = np.isfinite(saved).all(axis=0)
    explained = ratio_of_means(saved[0][is_known], saved[1][is_known], confidence=confidence)
    settings = plan.arms[tried].impose
    settings_text = ", ".join(f"{name} {shown(value)}" for name, value in settings.items())
    unlike = [
        name for name, value in settings.items() if not _is_in_force(evidence, tried, name, value)
    ]
    if unlike:
        explained, how = None, f"{unlike[0]} did not come into force, so it was not tried"
    elif result.withheld_by == "work":
        explained, how = None, "no share is told, since the two do different work"
    elif explained is None:
        both = f"{plan.baseline} and {candidate}"
        how = f"no share is told, since no difference between {both} is shown"
    else:
        bounds = bounds_text(explained.ci_low, explained.ci_high, share)
        how = f"closes {share(explained.value)} ({bounds}) of the difference in time"
    return Explanation(
        arm=tried,
        candidate=candidate,
        settings=settings,
        share=explained,
        sentence=f"{plan.baseline} with {settings_text}, as in {candidate}: {how}",
    )


def _is_in_force(evidence: Evidence, arm: str, name: str, value: Any) -> bool:
    """Whether all launches of an arm report the setting as it was imposed, numbers up to
    rounding.
    """
    reported = [
        ScriptArm.of(record).fields.get(name)
        for record in evidence.records
        if record.arm == arm and record.scripts
    ]
    return bool(reported) and all(
        math.isclose(mine, value, rel_tol=0.01)
        if isinstance(mine, int | float) and isinstance(value, int | float)
        else mine == value
        for mine in reported
    )
