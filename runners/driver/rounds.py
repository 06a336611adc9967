"""The rounds of one launch: the order of blocks or epochs, and how long a block is.

A round is one block of every arm, in random order. In a micro-benchmark it has a block of every arm
for each case, with the cases in random order, too. An arm that does not offer a case is left out of
it. If arms train to the end, a round is one epoch of every arm that is not done. Times to accuracy
are then measured interleaved, as blocks are.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from measurement.plans.plan import Plan
from measurement.plans.settings import EpochRecord, TrainingSettings
from measurement.records.block import BlockKind, BlockRecord
from reports.statistics.budget import MIN_ROUNDS, Cost, pilot
from reports.wording.formatting import count
from runners.driver.gates import drift_between, require_together
from runners.progress import LaunchProgress
from runners.protocol import BlockCommand, BlockReply, EpochCommand, EpochReport, combine
from runners.session.arm_run import ArmRun, Exchange
from runners.session.diagnosis import ArmFailed

PROBE_STEPS = 4
END_SHARE = 0.3
"""The expected time of gate and end, as a share of the start."""
EPOCH_BLOCKS = 30
"""How many blocks' time an epoch and its evaluation may take."""
SLOWEST_BLOCK = 4.0
"""A much slower arm's block may take up to this × the intended length; beyond it the blocks of all
arms have fewer steps."""
STEP_S = 1e-3
"""Intended length of a micro-benchmark's step, which sets its repetitions. A step of microseconds
would measure mostly the clock, and each block would have thousands of rows."""

ITERATIONS = "iterations"
"""The unit of samples if these cannot be counted in every arm: a step counts as one."""
CaseName = str | None
"""A micro-benchmark's case; None if a workload is trained."""
NextBlock = tuple[BlockKind, CaseName, ArmRun]


@dataclass(frozen=True, kw_only=True)
class BlockSize:
    """How many steps the blocks of a case have, the same for all arms."""

    steps: int
    repetitions: int = 1


@dataclass(frozen=True, kw_only=True)
class RoundLimit:
    """When a launch has enough rounds, within a budget of time."""

    rounds: int | None
    """None: the first pilot chooses, by the time of its start and its rounds."""
    budget_s: float
    """What is left of the budget, this launch included."""

    def is_reached(self, rounds: int, seconds: float, *, start_s: float) -> bool:
        """Whether ``rounds`` that took ``seconds`` after a start of ``start_s`` are enough."""
        cost = Cost(
            start_s=max(start_s, 0.1) * (1 + END_SHARE), round_s=max(seconds, 1e-3) / rounds
        )
        if rounds >= MIN_ROUNDS and cost.start_s + seconds + cost.round_s > self.budget_s:
            return True
        return rounds >= (self.rounds or pilot(cost, left_s=self.budget_s).rounds)


@dataclass(eq=False)
class Rounds:
    """Gives the arms their blocks. Each launch determines the sizes of its blocks."""

    plan: Plan
    _: KW_ONLY
    cases: Sequence[str]
    """A micro-benchmark's."""
    rng: random.Random
    """Draws the order."""
    progress: LaunchProgress
    seconds: float
    """How long each ``run`` takes, unless a plan counts rounds."""
    keep: Callable[[], None]
    """Called after each round."""
    is_enough: Callable[[int, float], bool] | None = None
    """Whether a number of rounds, in seconds of wall time, ends a ``run``. None: the plan's lengths
    decide, without the time in which scripts were restarted."""
    measuring_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._measure, self._turn = self.plan.measurement, 0
        self._is_uninterrupted = self._measure.mode == "separate" and not self.cases
        """Whether a model goes on from block to block, since no other arm has a turn."""
        self._cases: Sequence[CaseName] = list(self.cases) or [None]
        steps = self._measure.block_steps
        self._sizes = {case: BlockSize(steps=steps) for case in self._cases} if steps else {}

    def run(self, arms: Sequence[ArmRun]) -> None:
        """Run rounds of these arms until the plan's number is reached, or the time is over."""
        if not any(arm.is_running for arm in arms):
            return
        for case in () if self._is_uninterrupted and self._sizes else self._cases:
            self._find_size(case, arms)
        if not any(arm.is_running for arm in arms):
            return
        began, restarted_s = time.monotonic(), _restarting_s(arms)
        size = self._sizes.get(None)
        what = count(size.steps, "step") if size else count(len(self._cases), "case")
        self.progress.say(f"measuring blocks of {what}")
        for number, blocks in enumerate(self._rounds(arms)):
            for kind, case, arm in blocks:
                arm.run_unless_failed(
                    partial(self._block, kind=kind, case=case, number=number, began=began)
                )
            took = time.monotonic() - began
            done = took - (_restarting_s(arms) - restarted_s)
            share = self._share_of(number + 1)
            self.progress.tick(done, share=share)
            self.keep()
            has_planned_length = done >= self.seconds if share is None else share >= 1
            is_over = self.is_enough(number + 1, took) if self.is_enough else has_planned_length
            if is_over or not any(arm.is_running for arm in arms):
                break
        for arm in arms:
            arm.record.measuring_s = time.monotonic() - began

    def _share_of(self, rounds: int) -> float | None:
        """The share of the launch that ``rounds`` are; None if seconds decide."""
        if self.is_enough:
            return None
        if self._measure.steps_per_launch:
            return (
                rounds
                * min(size.steps for size in self._sizes.values())
                / self._measure.steps_per_launch
            )
        return rounds / self._measure.rounds if self._measure.rounds else None

    def _rounds(self, arms: Sequence[ArmRun]) -> Iterator[list[NextBlock]]:
        """Yield rounds without end.

        Each arm has one block per case; in some rounds it has another without exchange.
        """
        synced = [arm for arm in arms if "block" in arm.can]
        for number in itertools.count(1):
            cases = self._cases
            if len(cases) > 1:
                cases = self.rng.sample(cases, k=len(cases))
            blocks: list[NextBlock] = [
                ("sync", case, arm)
                for case in cases
                for arm in shuffled(synced, self.rng)
                if case not in arm.record.not_offered
            ]
            if (
                not self.cases
                and self._measure.local_every
                and number % self._measure.local_every == 0
            ):
                blocks += [
                    ("local", None, arm)
                    for arm in shuffled(arms, self.rng)
                    if "steps_apart" in arm.can
                ]
            yield blocks

    def _find_size(self, case: CaseName, arms: Sequence[ArmRun]) -> None:
        """Find a case's block size by a trial block of each arm. Trial blocks are not recorded."""
        # one late step would hide short ones
        typical = statistics.median if self.cases else statistics.fmean
        step_s: dict[str, float] = {}

        def probe(arm: ArmRun) -> None:
            block = self._exchange(
                arm,
                self._command(
                    arm, kind="sync", case=case, size=BlockSize(steps=PROBE_STEPS), number=0
                ),
            )
            step_s[arm.session.name] = max(
                typical([sum(phases) for phases in steps.phases_s]) for steps in block.ranks
            )

        for arm in arms:
            if case not in arm.record.not_offered:
                arm.run_unless_failed(probe)
        if case not in self._sizes and step_s:
            self._sizes[case] = self._size(step_s)

    def _size(self, step_s: dict[str, float]) -> BlockSize:
        """The number of steps that fills a block of the baseline, or fewer if another arm is far
        slower.
        """
        block_s = self._measure.block_s
        usual = step_s.get(self.plan.baseline, min(step_s.values()))
        number = max(1, round(min(block_s / usual, SLOWEST_BLOCK * block_s / max(step_s.values()))))
        number = min(number, self._measure.steps_per_launch or number)
        if not self.cases:
            return BlockSize(steps=number)
        repetitions = min(number, max(1, round(STEP_S / usual)))
        return BlockSize(steps=max(1, round(number / repetitions)), repetitions=repetitions)

    def _block(
        self, arm: ArmRun, *, kind: BlockKind, case: CaseName, number: int, began: float
    ) -> None:
        """Run one block and keep what the ranks timed."""
        command = self._command(arm, kind=kind, case=case, size=self._sizes[case], number=number)
        self._turn += 1
        started = time.monotonic()
        block = self._exchange(arm, command).model_copy(update={"started_s": started - began})
        # a script's block has losses, too
        arm.record.blocks.append(block if block.ranks[0].first_step is not None else block.packed())

    def _command(
        self, arm: ArmRun, *, kind: BlockKind, case: CaseName, size: BlockSize, number: int
    ) -> BlockCommand:
        return BlockCommand(
            turn=self._turn,
            round=number,
            block=len(arm.record.blocks),
            kind=kind,
            case=case,
            steps=size.steps,
            repetitions=size.repetitions,
            warmup_steps=0 if self._is_uninterrupted and number else self._measure.warmup_steps,
        )

    def _exchange(self, arm: ArmRun, command: BlockCommand) -> BlockRecord:
        done = arm.session.exchange(command, BlockReply, timeout_s=self._measure.block_timeout_s)
        self.measuring_s += done.took_s
        ranks = [reply.steps for reply in done.replies]
        for steps in ranks if arm.record.sample_unit == ITERATIONS else ():  # counted on rank 0
            steps.samples = [int(steps.rank == 0)] * len(steps.samples)
        block = BlockRecord.joined(
            command.record(ranks[0]), ranks, **measured_outside(done, self.plan)
        )
        drift = drift_between([reply.drift for reply in done.replies])
        if drift:  # of a script, which has no gate
            raise ArmFailed(
                f"{drift}; seen after step {(block.ranks[0].first_step or 0) + command.steps}",
                status="wrong",
            )
        for steps in block.ranks:
            if steps.wrong:  # a micro-benchmark's result, which is checked before each block
                raise ArmFailed(
                    f"rank {steps.rank}: {steps.wrong}", status="wrong", ranks=[steps.rank]
                )
        return block


def measured_outside(done: Exchange[Any], plan: Plan) -> dict[str, Any]:
    """The fields of a ``BlockRecord`` that only the driver knows."""
    links = (
        {host: use.link_bytes(plan.network_interface) for host, use in done.hosts.items()}
        if plan.hosts is not None
        else {}
    )
    return {"wall_s": done.took_s, "hosts": done.hosts, "link_bytes": links}


def _restarting_s(arms: Sequence[ArmRun]) -> float:
    """Seconds of this launch in which scripts were restarted."""
    return sum(arm.session.restarting_s for arm in arms)


def shuffled(arms: Sequence[ArmRun], rng: random.Random) -> list[ArmRun]:
    """Return the arms in random order."""
    return rng.sample(list(arms), k=len(arms))


@dataclass(eq=False)
class TrainingRounds:
    """Gives the arms their epochs. The first one builds the model, and nothing is rebuilt."""

    plan: Plan
    training: TrainingSettings
    _: KW_ONLY
    rng: random.Random
    progress: LaunchProgress
    note: Callable[[ArmRun, EpochRecord, BlockRecord], None]
    """Called with every epoch and its steps, while all arms wait."""
    measuring_s: float = field(default=0.0, init=False)
    _turn: int = field(default=0, init=False)

    def run(self, arms: Sequence[ArmRun]) -> None:
        """Train until every arm is done or has failed."""
        began = time.monotonic()
        self.progress.say(f"training {self.training.epochs} epochs")
        done, wanted = 0, self.training.epochs * len(arms)
        self.progress.epochs(done, wanted)
        for epoch in range(self.training.epochs):
            for arm in shuffled([arm for arm in arms if arm.is_running], self.rng):
                arm.run_unless_failed(partial(self._epoch, epoch=epoch, began=began))
                done += 1
                self.progress.epochs(done, wanted)
        for arm in arms:
            arm.record.measuring_s = time.monotonic() - began

    def _epoch(self, arm: ArmRun, *, epoch: int, began: float) -> None:
        """Run one epoch and keep what the ranks report."""
        command = EpochCommand(turn=self._turn, epoch=epoch)
        self._turn += 1
        started = time.monotonic()
        done = arm.session.exchange(
            command, EpochReport, timeout_s=EPOCH_BLOCKS * self.plan.measurement.block_timeout_s
        )
        self.measuring_s += done.took_s
        reports, ranks = done.replies, [reply.steps for reply in done.replies]
        record = combine(reports, epoch=epoch)
        block = BlockRecord.joined(
            command.record(ranks[0]),
            ranks,
            started_s=started - began,
            **measured_outside(done, self.plan),
        )
        arm.record.epochs.append(record)
        arm.record.blocks.append(block.packed())
        self.note(arm, record, block)
        require_together([report.drift for report in reports])
