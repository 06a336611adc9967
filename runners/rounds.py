"""The rounds of one launch: which arm runs which block when, how long a block is, and what each gave.

In training a round is one block of every arm, in random order. In a micro-benchmark it is that for each case, the cases too
in random order; an arm that does not offer a case is left out of it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from measurement.plan import Plan
from measurement.record import Failure
from runners.arm_launch import ArmLaunch, Clock, Say, block_record
from runners.arm_session import ArmFailed
from runners.job import BlockReport, Command
from runners.links import link_counter, passed

PROBE_STEPS = 4
SLOWEST_BLOCK = 4.0
"""A much slower arm's block may take this × the wished length; then all arms take fewer steps."""
STEP_S = 1e-3
"""Wished length of a micro-benchmark's step: so many repetitions. Single ones of some microseconds would be lost in the
clock's own time, and would write thousands of rows for each block."""

Kind = Literal["sync", "local"]
Item = tuple[Kind, str, ArmLaunch]
"""A block to come: its kind, its case, its arm."""
TRAINING = ("",)
"""The one case that training has."""


@dataclass(frozen=True, kw_only=True)
class Length:
    """Of a case's blocks, the same for all arms."""

    steps: int
    repetitions: int = 1


class Rounds:
    """Hands out the blocks; their lengths are found anew in each launch."""

    def __init__(
        self, plan: Plan, *, cases: Sequence[str], chance: random.Random, clock: Clock, say: Say, tick: Callable[[float], None]
    ) -> None:
        self._plan, self._measure = plan, plan.measurement
        self._is_training = not cases
        self._cases = tuple(cases) or TRAINING
        self._chance, self._clock = chance, clock
        self._say, self._tick = say, tick
        self._turn = 0
        self._link_bytes = link_counter(plan)
        steps = plan.measurement.block_steps
        self._lengths = {case: Length(steps=steps) for case in self._cases} if steps else {}

    def run(self, arms: Sequence[ArmLaunch], *, seconds: float) -> None:
        """Rounds of these arms until the plan's number is done, or the time is over."""
        if not any(arm.is_running for arm in arms):
            return
        for case in self._cases:
            self._find_length(case, arms)
        began = time.monotonic()
        self._say(self._what())
        for number, items in enumerate(self._rounds(arms)):
            for kind, case, arm in items:
                arm.attempt(partial(self._block, kind=kind, case=case, number=number, began=began))
            done = time.monotonic() - began
            self._tick(done)
            is_last = number + 1 >= self._measure.rounds if self._measure.rounds else done >= seconds
            if is_last or not any(arm.is_running for arm in arms):
                break
        for arm in arms:
            arm.record.measuring_s = time.monotonic() - began

    def _what(self) -> str:
        if not self._is_training:
            return f"measuring blocks of {len(self._cases)} cells"
        return f"measuring blocks of {self._lengths[''].steps} steps" if self._lengths else "measuring"

    def _rounds(self, arms: Sequence[ArmLaunch]) -> Iterator[list[Item]]:
        """Endless rounds: each arm once in each case, in an order of its own; training now and then once more without exchange."""
        number = 0
        while True:
            number += 1
            items: list[Item] = [("sync", case, arm) for case in self._cases_shuffled() for arm in self._offering(case, arms)]
            if self._is_training and self._measure.local_every and number % self._measure.local_every == 0:
                items += [("local", "", arm) for arm in shuffled(arms, self._chance)]
            yield items

    def _cases_shuffled(self) -> Sequence[str]:
        """Drawing from one case would use up randomness: plans of training keep their order of blocks."""
        return self._cases if len(self._cases) == 1 else self._chance.sample(self._cases, k=len(self._cases))

    def _offering(self, case: str, arms: Sequence[ArmLaunch]) -> list[ArmLaunch]:
        return [arm for arm in shuffled(arms, self._chance) if case not in arm.record.not_offered]

    def _find_length(self, case: str, arms: Sequence[ArmLaunch]) -> None:
        """By an untimed trial of each arm."""
        step_s: dict[str, float] = {}

        def probe(arm: ArmLaunch) -> None:
            _, reports = self._exchange(arm, case=case, length=Length(steps=PROBE_STEPS), kind="sync")
            step_s[arm.session.name] = max(self._typical([sum(phases) for phases in report.phases_s]) for report in reports)

        for arm in arms:
            if case not in arm.record.not_offered:
                arm.attempt(probe)
        if case not in self._lengths and step_s:
            self._lengths[case] = self._length(step_s)

    def _typical(self, step_s: Sequence[float]) -> float:
        """Of a trial's steps: their mean; their median where one that was held up would hide how short the others are."""
        return statistics.fmean(step_s) if self._is_training else statistics.median(step_s)

    def _length(self, step_s: dict[str, float]) -> Length:
        """What fills a block of the baseline; less where another arm is far slower."""
        wished = self._measure.block_s
        usual = step_s.get(self._plan.baseline, min(step_s.values()))
        number = max(1, round(min(wished / usual, SLOWEST_BLOCK * wished / max(step_s.values()))))
        if self._is_training:
            return Length(steps=number)
        repetitions = min(number, max(1, round(STEP_S / usual)))
        return Length(steps=max(1, round(number / repetitions)), repetitions=repetitions)

    def _block(self, arm: ArmLaunch, *, kind: Kind, case: str, number: int, began: float) -> None:
        """One block: thaw, train, freeze, keep the raw times."""
        turn, self._turn = self._turn, self._turn + 1
        before = self._link_bytes()
        started = time.monotonic()
        command, reports = self._exchange(arm, case=case, length=self._lengths[case], kind=kind)
        block = block_record(
            command,
            turn=turn,
            number=number,
            block=len(arm.record.blocks),
            started_s=started - began,
            wall_s=time.monotonic() - started,
            untimed_s=max(report.untimed_s for report in reports),
        )
        block.link_bytes = passed(before, self._link_bytes())
        arm.keep(block, reports)

    def _exchange(self, arm: ArmLaunch, *, case: str, length: Length, kind: Kind) -> tuple[Command, list[BlockReport]]:
        command = Command(
            do="block",
            case=case,
            steps=length.steps,
            repetitions=length.repetitions,
            warmup_steps=self._measure.warmup_steps,
            kind=kind,
            rebuild=arm.blocks % self._measure.rebuild_every == 0 or kind == "local",
            layout=self._chance.getrandbits(31),
        )
        arm.blocks += 1
        replies, took_s = arm.session.exchange(command, timeout_s=self._measure.block_timeout_s)
        self._clock.training_s += took_s
        reports = [reply.block for reply in replies if reply.block]
        _raise_if_wrong(reports)
        return command, reports


def _raise_if_wrong(reports: Sequence[BlockReport]) -> None:
    """A micro-benchmark checks its result before each block."""
    wrong = next((report for report in reports if report.wrong), None)
    if wrong is not None:
        raise ArmFailed(Failure(message=f"rank {wrong.rank}: {wrong.wrong}", ranks=[wrong.rank]), status="wrong")


def shuffled(arms: Sequence[ArmLaunch], chance: random.Random) -> list[ArmLaunch]:
    """In random order."""
    return chance.sample(list(arms), k=len(arms))
