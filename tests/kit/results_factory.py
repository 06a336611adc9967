"""Writes results folders of known truth through ``measurement.records.results``, as the driver
would, without running anything."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from measurement.conditions.same_environment import plan_digest
from measurement.plans.plan import FLOOR, Plan
from measurement.plans.sections import Arm, Measurement
from measurement.records.block import BlockRecord, RankSteps, ThreadTimes
from measurement.records.record import (
    Case,
    Failure,
    LaunchRecord,
    Manifest,
    ParityResult,
    RankReport,
)
from measurement.records.results import ResultsFolder
from reports import REGISTRY, conclude
from reports.formats.terminal import comparison_lines
from reports.formats.tracker import Tracker
from reports.schema import Comparison

STARTED = "2026-01-01T12:00:00+00:00"
COMPARISON_ID = "synthetic-20260101"
LIBRARIES = {
    "ddp": {"torch": "2.15.0", "bucket_cap_mb": 25},
    "horovod": {"horovod": "0.28.1", "fusion_threshold_bytes": 134217728},
    "single": {"torch": "2.15.0"},
    "script": {"library": "ddp", "transport": "gloo"},
}
SHARES = {
    **dict.fromkeys(("ddp", "single", "script"), (0.05, 0.3, 0.6, 0.05, 0.0)),
    "horovod": (0.05, 0.3, 0.35, 0.3, 0.0),
}
"""Of a step's time: data wait, forward, backward, optimizer, exchange."""
FORMATS = sorted(
    name for name in REGISTRY.names() if not issubclass(REGISTRY.resolve(name), Tracker)
)
"""Reports that are files alone: trackers need a server."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is true of the synthetic arms; everything else is noise."""

    ratios: Mapping[str, float] = field(
        default_factory=lambda: {"horovod-gloo": 1.1, "horovod-mpi": 0.9}
    )
    """Throughput of each candidate relative to the baseline."""
    statuses: Mapping[tuple[str, int], Literal["ok", "failed", "wrong", "timeout"]] = field(
        default_factory=dict
    )
    """By arm and launch; ok where not named."""
    cut: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Rounds after which a launch was interrupted, by arm and launch."""
    control_ratio: float = 1.0
    step_s: float = 0.02
    exposed_s: float = 0.004
    """Of every arm: a local step is that much shorter."""
    overhead_s: Mapping[str, float] = field(default_factory=dict)
    """By arm: what its library takes of every step, with or without exchange."""
    more_exchange_s: Mapping[str, float] = field(default_factory=dict)
    """By arm: how much longer its steps with exchange are."""
    late_s: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """By arm and rank: how much longer its steps without exchange are."""
    noise: float = 0.03
    """Of a block's log time; Student's t with 3 degrees of freedom, scaled to this standard
    deviation."""
    launch_noise: float = 0.0
    stalls: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By arm: the share of its steps that stall, and for how many seconds."""
    loaded_rounds: Sequence[int] = ()
    """Rounds in which another process takes half of the cores."""
    load_error: float = 0.0
    """Standard deviation of what a block's load is counted wrong by, as a share of its cores."""
    slowed_by_load: Mapping[str, float] = field(default_factory=dict)
    """By arm: how many times as long its steps take in those rounds; 1.5 where not named."""
    drift: float = 0.2
    """Of the machine during a launch, all arms alike."""
    cases: Sequence[Case] = ()
    """Of a micro-benchmark; without any it is training."""
    not_offered: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By arm, operations that its library does not have."""
    case_ratios: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By arm and case, where it is another than ``ratios``."""
    message: str = "rank 1 exited with code 1"
    log: str = "Traceback (most recent call last):\nRuntimeError: connection closed by peer"


def make_plan(ratios: Iterable[str] = ("horovod-gloo", "horovod-mpi"), **measurement: Any) -> Plan:
    """DDP on Gloo as the baseline, the named arms beside it."""
    arms = {"ddp-gloo": Arm(backend="ddp", transport="gloo", launcher="torchrun")}
    for name in ratios:
        transport = "mpi" if "mpi" in name else "gloo"
        library = "horovod" if name.startswith("horovod") else "ddp"
        arms[name] = Arm(
            backend=library,
            transport=transport,
            launcher="horovodrun",
            options={"compression": "none"},
        )
    settings = Measurement(
        **{"launches": 3, "rounds": 12, "block_steps": 5, "local_every": 4} | measurement
    )
    return Plan(
        name="synthetic",
        workload="digits",
        world_size=2,
        baseline="ddp-gloo",
        arms=arms,
        measurement=settings,
    )


def write_results(
    root: Path,
    *,
    truth: Truth | None = None,
    plan: Plan | None = None,
    seed: int = 1,
    truths: Mapping[int, Truth] | None = None,
    change: Callable[[LaunchRecord], object] = lambda record: None,
    **changes: Any,
) -> ResultsFolder:
    """A whole results folder without reports.

    Args:
        root: where it is made.
        truth: what is true of the arms.
        plan: instead of one of the truth's arms.
        seed: of the noise.
        truths: of launches of which another truth holds.
        change: alters each record before it is written.
        changes: fields of ``Truth`` and of the plan's ``measurement``, by name.
    """
    names = {attribute.name for attribute in fields(Truth)} & changes.keys()
    truth = replace(truth or Truth(), **{name: changes.pop(name) for name in names})
    plan = plan or make_plan(truth.ratios, **changes)
    folder = empty_results(root, plan)
    for launch in range(plan.measurement.launches):
        true = (truths or {}).get(launch, truth)
        for record in make_launch(plan, true, launch, random=np.random.default_rng([seed, launch])):
            change(record)
            folder.write_launch(record)
    return folder


def empty_results(root: Path, plan: Plan) -> ResultsFolder:
    """A folder before its first launch."""
    folder = ResultsFolder(root)
    folder.write_plan(plan)
    folder.write_manifest(make_manifest(plan))
    return folder


def concluded(root: Path, **more: Any) -> Comparison:
    """What is concluded from ``write_results`` with these arguments."""
    return conclude(write_results(root, **more))


def on_terminal(comparison: Comparison, *, width: int = 80) -> str:
    """What a terminal of this width shows of it."""
    text = io.StringIO()
    Console(file=text, width=width).print(comparison_lines(comparison))
    return text.getvalue()


def make_manifest(plan: Plan) -> Manifest:
    """A comparison of synthetic arms."""
    return Manifest(
        comparison_id=COMPARISON_ID,
        plan_digest=plan_digest(plan),
        created_at=STARTED,
        ringside_version="0.1.0",
        driver={
            "host": "host1",
            "cpu": "Synthetic CPU",
            "cores": 2,
            "git_commit": "0" * 40,
            "git_dirty": False,
        },
        seconds={"total": 240.0, "starting": 40.0, "training": 180.0, "other": 20.0},
    )


def make_record(**changes: Any) -> LaunchRecord:
    """A baseline's record of one rank that measured nothing, but for ``changes``."""
    usual = {
        "comparison_id": "c",
        "plan_digest": "d",
        "launch": 0,
        "arm": "ddp",
        "role": "baseline",
        "backend": "ddp",
        "transport": "gloo",
        "launcher": "torchrun",
        "workload": "digits",
        "world_size": 1,
        "status": "ok",
    }
    return LaunchRecord(**usual | changes)


def make_launch(
    plan: Plan, truth: Truth, launch: int, *, random: np.random.Generator
) -> list[LaunchRecord]:
    """One launch of every arm."""
    arms, measurement = list(plan.compared_arms()), plan.measurement
    level = {arm: random.normal(0, truth.launch_noise) for arm in arms}
    blocks: dict[str, list[BlockRecord]] = {arm: [] for arm in arms}
    rounds, every, steps = (
        measurement.rounds or 12,
        measurement.local_every,
        measurement.block_steps or 5,
    )
    turn = 0
    for number in range(rounds):
        kinds = ["sync", "local"] if every and number % every == 0 and not truth.cases else ["sync"]
        is_loaded = number in truth.loaded_rounds
        for kind, case in itertools.product(kinds, truth.cases or [None]):
            for arm in random.permutation(arms):
                if case and case.operation in truth.not_offered.get(arm, ()):
                    continue
                speed = (
                    truth.control_ratio if arm == plan.control_name else truth.ratios.get(arm, 1.0)
                )
                speed = truth.case_ratios.get((arm, case.name), speed) if case else speed
                step_s = _drifted(truth, number, random, level[arm]) / speed
                if number < truth.cut.get((arm, launch), 10**6):
                    step_s += truth.overhead_s.get(arm, 0.0) - truth.exposed_s * (kind == "local")
                    step_s += truth.more_exchange_s.get(arm, 0.0) * (kind == "sync")
                    step_s *= truth.slowed_by_load.get(arm, 1.5) if is_loaded else 1.0
                    share, seconds = truth.stalls.get(arm, (0.0, 0.0))
                    stall_s = [
                        seconds * float(random.random() < share) if share else 0.0
                        for _ in range(steps)
                    ]
                    where = {"turn": turn, "round": number, "block": len(blocks[arm])}
                    place = {**where, "kind": kind, "steps": steps}
                    blocks[arm].append(
                        _block(plan, truth, arm, place, case, step_s, random, stall_s)
                    )
                    load = 0.5 if is_loaded else 0.005
                    blocks[arm][-1].foreign_share = load + (
                        random.normal(0.0, truth.load_error) if truth.load_error else 0.0
                    )
                turn += 1
    if plan.has_floor and not truth.cases:  # beside the rounds that have blocks without exchange
        spawned = random.spawn(1)[0]
        blocks[FLOOR] = []
        for block, number in enumerate(range(0, rounds, every)):
            step_s = _drifted(truth, number, spawned) - truth.exposed_s
            where = {"turn": 100_000 + number, "round": number, "block": block}
            place = {**where, "kind": "local", "steps": steps}
            blocks[FLOOR].append(
                _block(plan, truth, FLOOR, place, None, step_s, spawned, [0.0] * steps)
            )
    return [_record(plan, truth, launch, arm, timed) for arm, timed in blocks.items()]


def _drifted(truth: Truth, number: int, random: np.random.Generator, level: float = 0.0) -> float:
    """Seconds of a step in a round, with the machine's drift and noise."""
    noise = truth.drift * np.sin(number / 3) + truth.noise * random.standard_t(3) / np.sqrt(3)
    return np.exp(level + noise) * truth.step_s


def _block(plan, truth, arm, place, case, step_s, random, stall_s) -> BlockRecord:
    steps, ranks = place["steps"], []
    for rank in range(plan.world_size):
        phases = []
        for step in range(steps):
            duration_s = (
                step_s
                * (1.0 if rank == 0 else 0.999)
                * (1 + 0.01 * random.standard_normal() * (steps > 1))
                + stall_s[step]
            )
            duration_s += truth.late_s.get((arm, rank), 0.0) * (place["kind"] == "local")
            phases.append((duration_s * np.array(SHARES[_arm(plan, arm).backend])).tolist())
        samples = (case.size * case.messages if rank == 0 else 0) if case else plan.local_batch_size
        own = {"rank": rank, "samples": [samples] * steps, "phases_s": phases}
        threads = ThreadTimes(running_s=steps * step_s, runnable_s=0.0, library_s=0.0, others_s=0.0)
        ranks.append(RankSteps(**own, untimed_s=0.2, threads=threads))
    wall_s = steps * step_s + 0.3
    times = {"started_s": place["turn"] * wall_s, "wall_s": wall_s, "untimed_s": 0.2}
    timed = BlockRecord(**place, **times, case=case.name if case else None, ranks=ranks)
    return BlockRecord.joined(timed, ranks)


def _record(plan, truth, launch, arm, blocks) -> LaunchRecord:
    asked, status = _arm(plan, arm), truth.statuses.get((arm, launch), "ok")
    wrong = ["weight of conv1: relative error 0.5, tolerance 1e-05"] if status == "wrong" else []
    told = {"message": truth.message, "log_tail": {"rank-1": truth.log}}
    error = Failure(**told, ranks=[1], hosts=["host1"]) if status != "ok" else None
    lacks = [case.name for case in truth.cases if case.operation in truth.not_offered.get(arm, ())]
    place = {"world_size": plan.world_size, "launcher": asked.launcher or "torchrun"}
    parity = ParityResult(
        passed=not wrong,
        failures=wrong,
        gradient_error=0.5 if wrong else 2e-7,
        parameter_spread=0.0,
        tolerance=1e-5,
        samples_digest="d0",
    )
    return make_record(
        **place,
        started_at=STARTED,
        start_s=8.0,
        measuring_s=60.0,
        peak_memory_bytes=[400 * 2**20, 401 * 2**20],
        comparison_id=COMPARISON_ID,
        plan_digest=plan_digest(plan),
        launch=launch,
        arm=arm,
        role=plan.role(arm),
        backend=asked.backend,
        transport=asked.transport or "gloo",
        options=asked.options,
        workload=plan.workload,
        sample_unit="bytes" if truth.cases else "images",
        hosts=["host1"],
        status=status,
        complete=(arm, launch) not in truth.cut,
        error=error,
        exit_codes=[int(status != "ok")],
        ranks=[_rank(plan, asked, rank, **place) for rank in range(plan.world_size)],
        parity=parity,
        cases=list(truth.cases),
        not_offered=dict.fromkeys(lacks, "not offered by Horovod"),
        blocks=blocks,
    )


def _arm(plan: Plan, arm: str) -> Arm:
    """The floor is written as a single process of which there are several."""
    return Arm(backend="single") if arm == FLOOR else plan.compared_arms()[arm]


def _rank(plan, asked, rank, **place) -> RankReport:
    return RankReport(
        **place,
        rank=rank,
        local_rank=rank,
        node_rank=0,
        local_world_size=plan.world_size,
        host="host1",
        pid=100 + rank,
        device="cpu",
        threads=1,
        affinity=[rank],
        seed=plan.seed,
        local_batch_size=plan.local_batch_size,
        micro_steps=plan.micro_steps,
        backend={"transport": asked.transport, **LIBRARIES[asked.backend]},
        fingerprint={
            "platform": "Linux 6.1 x86_64",
            "cpu": "Synthetic CPU",
            "cores": 2,
            "python": "3.11.7",
            "torch": "2.15.0",
        },
    )
