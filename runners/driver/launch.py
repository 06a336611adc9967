"""One launch of a comparison: all arms up at once, blocks (or epochs) handed out in random order, waiting arms stopped.

A launch yields one record, one table of raw steps and one folder of TensorBoard events per arm, whatever happened to it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from measurement.conditions.same_environment import plan_digest
from measurement.errors import RecordError
from measurement.plans.plan import Plan
from measurement.plans.settings import EpochRecord
from measurement.records.record import BlockRecord, Case, LaunchRecord
from measurement.records.results import ResultsFolder
from runners.driver.arm_launch import ArmLaunch, Clock, with_first_optimizer
from runners.driver.arm_session import ArmSession, DriverEndpoint
from runners.driver.gates import compare_conditions, open_gates, require_together
from runners.driver.progress import Progress
from runners.driver.rounds import Rounds, TrainingRounds, shuffled
from runners.event_log import EVENT_FILES, TensorboardLog
from runners.planning.arms import ArmSetup, job_of, seed_of
from runners.planning.workload import WorkloadSetup

KEEP_EVERY_S = 30.0
"""At most so much of what was measured is lost with the driver, and what a round or an epoch takes."""


class Launch:
    """Runs one launch: start, gates, rounds, end."""

    def __init__(
        self,
        plan: Plan,
        arms: Sequence[ArmSetup],
        workload: WorkloadSetup,
        cases: Sequence[Case],
        *,
        number: int,
        folder: ResultsFolder,
        endpoint: DriverEndpoint,
        progress: Progress,
        refused: Mapping[str, LaunchRecord] | None = None,
    ) -> None:
        """``refused``: by name, the rehearsal's records of arms that failed there: rows of the report, which are not started."""
        self.plan, self.measure = plan, plan.measurement
        self.number = number
        self.clock = Clock()
        self._workload = workload
        self._cases = cases
        self._folder = folder
        self._progress, self._say = progress, progress.say
        self._rng = random.Random(f"{plan.seed}/{number}")
        self._rounds = self._new_rounds()
        self._events: dict[str, TensorboardLog] = {}
        self._kept_at_s = time.monotonic()
        self.arms = [self._arm(setup, endpoint) for setup in arms]
        for arm in self.arms:
            if refused and arm.record.arm in refused:
                arm.refuse(refused[arm.record.arm])

    @property
    def compared(self) -> list[ArmLaunch]:
        """The arms without the floor."""
        return [arm for arm in self.arms if not arm.is_floor]

    def _new_rounds(self) -> Rounds | TrainingRounds:
        plan, rng, clock, say = self.plan, self._rng, self.clock, self._say
        if plan.training is None:
            names = [case.name for case in self._cases]
            return Rounds(plan, cases=names, rng=rng, clock=clock, say=say, tick=self._tick)
        count = self._progress.epochs
        return TrainingRounds(plan, plan.training, rng=rng, clock=clock, say=say, count=count, note=self._note_epoch)

    def _arm(self, setup: ArmSetup, endpoint: DriverEndpoint) -> ArmLaunch:
        folder = self._folder.launch_folder(self.number, setup.name)
        for old in [*folder.glob("*.log"), *self._events_folder(setup.name).glob(EVENT_FILES)]:
            old.unlink()
        session = ArmSession(setup, launch=self.number, folder=folder, endpoint=endpoint)
        record = LaunchRecord(
            comparison_id=self._folder.root.name,
            plan_digest=plan_digest(self.plan),
            launch=self.number,
            arm=setup.name,
            role=self.plan.role(setup.name),
            backend=setup.arm.backend,
            transport=setup.transport or "none",
            launcher=setup.launcher_reference,
            options=dict(setup.arm.options),
            environment=dict(setup.arm.environment),
            workload=self.plan.workload,
            sample_unit=self._workload.workload.sample_unit,
            world_size=setup.plan.world_size,
            status="ok",
            commands=session.commands_as_run(),
            cases=list(self._cases),
        )
        has_local_steps = setup.backend.offers_local_steps(setup.options) and not setup.plan.speed.sync_batchnorm
        return ArmLaunch(session=session, record=record, say=self._say, has_local_steps=has_local_steps)

    def run(self) -> None:
        """Run the launch. Every arm's record is written and nothing is left running, also when it is interrupted."""
        try:
            if self.measure.mode == "interleaved":
                self._run_interleaved()
            else:
                self._run_sequential()
        except BaseException:
            for arm in self.arms:
                arm.record.complete = arm.record.complete and arm.record.status != "ok"
            raise
        finally:
            self._end_all()

    def _end_all(self) -> None:
        """End every arm, then write every record, whatever goes wrong with one of them.

        Raises:
            RecordError: one cannot be written.
        """
        for arm in self.arms:
            arm.session.end()
        failed: RecordError | None = None
        for arm in self.arms:
            try:
                self._write(arm)
            except RecordError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _keep(self) -> None:
        """Write what was measured so far, if that was not done for a while: a driver that is killed leaves it."""
        if time.monotonic() - self._kept_at_s < KEEP_EVERY_S:
            return
        for arm in self.arms:
            if arm.is_running and arm.record.blocks:
                self._folder.write_launch(arm.record.model_copy(update={"complete": False}))
        self._kept_at_s = time.monotonic()

    def _tick(self, seconds: float) -> None:
        self._progress.tick(seconds)
        self._keep()

    def _run_interleaved(self) -> None:
        ranks = sum(arm.record.world_size for arm in self.arms)
        floor = " and the floor" if len(self.compared) < len(self.arms) else ""
        self._say(f"starting {len(self.compared)} arms{floor}, {ranks} ranks in all")
        order = shuffled(self.arms, self._rng)
        for arm in order:
            arm.run_unless_failed(self._start)
        for arm in order:
            arm.run_unless_failed(self._await_ready)
        self._measure(order, known=self.arms, seconds=self.measure.seconds_per_launch)
        self._finish_all(self.arms)

    def _run_sequential(self) -> None:
        order = shuffled(self.arms, self._rng)
        done: list[ArmLaunch] = []
        for arm in order:
            self._say(f"starting {arm.session.name} x {arm.record.world_size} ranks")
            arm.run_unless_failed(self._start)
            arm.run_unless_failed(self._await_ready)
            done.append(arm)
            self._measure([arm], known=done, seconds=self.measure.seconds_per_launch / len(order))
            self._finish_all([arm])

    def _measure(self, arms: Sequence[ArmLaunch], *, known: Sequence[ArmLaunch], seconds: float) -> None:
        """Measure these arms and open their gates; ``known``: those they are held against, themselves too."""
        held = [arm for arm in known if not arm.is_floor]
        compare_conditions(held)
        compared = [arm for arm in arms if not arm.is_floor]
        gates_come_first = bool(self._cases) or self.plan.training is not None  # see gates.py
        open_gates_now = partial(
            open_gates, compared, known=held, measurement=self.measure, after_blocks=not gates_come_first, say=self._say
        )
        if gates_come_first:
            open_gates_now()
        self.clock.starting_s += self.clock.elapsed_s - self.clock.starting_s - self.clock.measuring_s
        self._rounds.run(arms, seconds=seconds)
        if not gates_come_first:
            open_gates_now()

    def _start(self, arm: ArmLaunch) -> None:
        setup = arm.session.setup
        job = job_of(setup.plan, setup.name, setup.arm, transport=setup.transport, launch=self.number, global_plan=self.plan)
        arm.session.start(job)

    def _await_ready(self, arm: ArmLaunch) -> None:
        replies = arm.session.await_ready()
        arm.record.ranks = arm.ready = [reply.report for reply in replies]
        arm.record.hosts = sorted({rank.host for rank in arm.record.ranks})
        arm.record.start_s = time.monotonic() - arm.session.started_s
        arm.session.freeze()

    def _finish_all(self, arms: Sequence[ArmLaunch]) -> None:
        """End all arms at the same time: it takes seconds and is not measured."""
        for arm in arms:
            arm.run_unless_failed(lambda arm: arm.session.ask_to_finish())
        for arm in arms:
            arm.run_unless_failed(self._finish)

    def _finish(self, arm: ArmLaunch) -> None:
        replies = arm.session.finish()
        pairs = zip((reply.report for reply in replies), arm.record.ranks, strict=True)
        arm.record.ranks = [with_first_optimizer(new, old) for new, old in pairs]
        arm.record.peak_memory_bytes = [reply.peak_memory_bytes for reply in replies]
        if not arm.is_floor:
            require_together([reply.drift for reply in replies])

    def _write(self, arm: ArmLaunch) -> None:
        arm.record.exit_codes = arm.session.exit_codes
        self._folder.write_launch(arm.record)
        try:
            if arm.record.blocks and not self._cases and self.plan.training is None:
                self._tensorboard_log(arm).rounds(arm.record.blocks)
            if arm.session.name in self._events:
                self._events.pop(arm.session.name).close()
        except OSError as error:  # the records are what counts
            self._say(f"TensorBoard's events of {arm.session.name} cannot be written: {error.strerror or error}")

    def _note_epoch(self, arm: ArmLaunch, epoch: EpochRecord, block: BlockRecord) -> None:
        self._tensorboard_log(arm).epoch(epoch, block)
        self._keep()

    def _tensorboard_log(self, arm: ArmLaunch) -> TensorboardLog:
        """The log of an arm, opened at its first use."""
        name = arm.session.name
        if name not in self._events:
            self._events[name] = TensorboardLog(self._events_folder(name), sample_unit=arm.record.sample_unit)
        return self._events[name]

    def _events_folder(self, arm: str) -> Path:
        run = f"seed-{seed_of(self.plan, self.number)}" if self.plan.training else f"launch-{self.number}"
        return self._folder.events_folder(arm, run)
