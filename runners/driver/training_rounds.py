"""The rounds of one launch of a plan with training: one epoch of every arm that is not done, in random order.

So the arms' times to accuracy are measured interleaved, as blocks are. Nothing is rebuilt and no length is tried out: the
first epoch builds the model, the others go on with it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from measurement.plan import Plan
from measurement.training import EpochRecord, Training
from runners.arm_launch import ArmLaunch, Clock, Say
from runners.epoch_records import combine, epoch_block
from runners.event_log import Row
from runners.job import Command
from runners.links import link_counter, passed
from runners.rounds import shuffled

Note = Callable[[ArmLaunch, EpochRecord, Sequence[Row]], None]
"""Told of every epoch and its steps, while all arms wait."""
Count = Callable[[int, int], None]
"""Told how many epochs of this launch are done, and of how many."""


class TrainingRounds:
    """Hands out the epochs."""

    def __init__(
        self, plan: Plan, training: Training, *, chance: random.Random, clock: Clock, say: Say, count: Count, note: Note
    ) -> None:
        self._training = training
        self._chance, self._clock = chance, clock
        self._say, self._count, self._note = say, count, note
        self._turn = 0
        self._link_bytes = link_counter(plan)

    def run(self, arms: Sequence[ArmLaunch], *, seconds: float) -> None:
        """Until every arm is done, or has failed; the wished ``seconds`` of blocks say nothing here."""
        began = time.monotonic()
        self._say(f"training {self._training.epochs} epochs")
        self._count_all(arms)
        for epoch in range(self._training.epochs):
            for arm in shuffled([arm for arm in arms if not self._is_done(arm)], self._chance):
                arm.attempt(partial(self._epoch, epoch=epoch, began=began))
                self._count_all(arms)
        for arm in arms:
            arm.record.measuring_s = time.monotonic() - began

    def _is_done(self, arm: ArmLaunch) -> bool:
        reached = bool(arm.record.epochs) and self._training.is_reached(arm.record.epochs[-1])
        return not arm.is_running or (self._training.stop_at_target and reached)

    def _count_all(self, arms: Sequence[ArmLaunch]) -> None:
        """An arm that is done leaves no epochs to be waited for."""
        done = sum(len(arm.record.epochs) for arm in arms)
        self._count(done, sum(len(arm.record.epochs) if self._is_done(arm) else self._training.epochs for arm in arms))

    def _epoch(self, arm: ArmLaunch, *, epoch: int, began: float) -> None:
        """One epoch: thaw, train, evaluate, freeze, keep what the ranks saw."""
        turn, self._turn = self._turn, self._turn + 1
        before, started = self._link_bytes(), time.monotonic()
        replies, took_s = arm.session.exchange(Command(do="epoch", epoch=epoch), timeout_s=self._training.epoch_timeout_s)
        self._clock.training_s += took_s
        reports = [reply.epoch for reply in replies if reply.epoch]
        record = combine(reports, epoch=epoch)
        block = epoch_block(record, turn=turn, started_s=started - began, wall_s=time.monotonic() - started)
        block.link_bytes = passed(before, self._link_bytes())
        arm.record.epochs.append(record)
        self._note(arm, record, arm.keep(block, reports))
