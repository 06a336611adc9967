"""The rounds of a launch in which arms train to the end: one epoch of every arm that is not done, in random order.

So times to accuracy are measured interleaved, as blocks are. Nothing is rebuilt: the first epoch builds the model.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from measurement.plan import Plan
from measurement.record import BlockRecord
from measurement.training import EpochRecord, TrainingSettings
from runners.driver.arm_launch import ArmLaunch, Clock, Say
from runners.driver.gates import require_together
from runners.driver.rounds import measured_outside, shuffled
from runners.protocol.epoch_records import combine
from runners.protocol.messages import EpochCommand, EpochReply

Note = Callable[[ArmLaunch, EpochRecord, BlockRecord], None]
"""Called with every epoch and its steps, while all arms wait."""
Count = Callable[[int, int], None]
"""Called with the number of epochs that this launch has done, and of how many."""


class TrainingRounds:
    """Hands out the epochs."""

    def __init__(
        self, plan: Plan, training: TrainingSettings, *, rng: random.Random, clock: Clock, say: Say, count: Count, note: Note
    ) -> None:
        self._training = training
        self._rng, self._clock = rng, clock
        self._say, self._count, self._note = say, count, note
        self._turn = 0
        self._plan = plan

    def run(self, arms: Sequence[ArmLaunch], *, seconds: float) -> None:
        """Train until every arm is done or has failed; ``seconds`` has no meaning here."""
        began = time.monotonic()
        self._say(f"training {self._training.epochs} epochs")
        self._count_all(arms)
        for epoch in range(self._training.epochs):
            for arm in shuffled([arm for arm in arms if not self._is_done(arm)], self._rng):
                arm.run_unless_failed(partial(self._epoch, epoch=epoch, began=began))
                self._count_all(arms)
        for arm in arms:
            arm.record.measuring_s = time.monotonic() - began

    def _is_done(self, arm: ArmLaunch) -> bool:
        reached = bool(arm.record.epochs) and self._training.is_reached(arm.record.epochs[-1])
        return not arm.is_running or (self._training.stop_at_target and reached)

    def _count_all(self, arms: Sequence[ArmLaunch]) -> None:
        """Report the epochs done and to do; an arm that is done early has none to do."""
        done = sum(len(arm.record.epochs) for arm in arms)
        self._count(done, sum(len(arm.record.epochs) if self._is_done(arm) else self._training.epochs for arm in arms))

    def _epoch(self, arm: ArmLaunch, *, epoch: int, began: float) -> None:
        """Run one epoch and keep what the ranks report."""
        command = EpochCommand(turn=self._turn, epoch=epoch)
        self._turn += 1
        started = time.monotonic()
        done = arm.session.exchange(command, EpochReply, timeout_s=self._training.epoch_timeout_s)
        self._clock.measuring_s += done.took_s
        reports = [reply.report for reply in done.replies]
        record = combine(reports, epoch=epoch)
        outside = measured_outside(done, self._plan)
        block = BlockRecord.joined([report.block for report in reports], started_s=started - began, **outside)
        arm.record.epochs.append(record)
        arm.record.blocks.append(block)
        self._note(arm, record, block)
        require_together([report.drift for report in reports])
