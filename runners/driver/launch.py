"""One launch of a comparison: all arms up at once, blocks (or epochs) handed out in random order, idle arms frozen.

What a launch yields is one record, one table of raw steps and one folder of events per arm, whatever happened to it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from measurement.plan import Plan
from measurement.record import Case, LaunchRecord
from measurement.results import ResultsFolder, steps_table
from measurement.training import EpochRecord
from runners.arm_launch import ArmLaunch, Clock, with_first_optimizer
from runners.arm_session import ArmSession, Meeting
from runners.event_log import EVENT_FILES, EventLog, Row
from runners.gates import open_gates
from runners.job import Job
from runners.planning import ArmSetup, WorkloadSetup
from runners.progress import Progress
from runners.rounds import Rounds, shuffled
from runners.training_rounds import TrainingRounds


class Launch:
    """Runs one launch: start, gates, rounds, end."""

    def __init__(
        self,
        plan: Plan,
        arms: dict[str, ArmSetup],
        workload: WorkloadSetup,
        cases: Sequence[Case],
        *,
        number: int,
        folder: ResultsFolder,
        meeting: Meeting,
        progress: Progress,
    ) -> None:
        self.plan, self.measure = plan, plan.measurement
        self.number = number
        self.clock = Clock()
        self._workload = workload
        self._cases = cases
        self._folder = folder
        self._progress, self._say = progress, progress.say
        self._chance = random.Random(f"{plan.seed}/{number}")
        self._rounds = self._new_rounds()
        self._events: dict[str, EventLog] = {}
        self.arms = {name: self._arm(setup, meeting) for name, setup in arms.items()}

    def _new_rounds(self) -> Rounds | TrainingRounds:
        plan, chance, clock, say = self.plan, self._chance, self.clock, self._say
        if plan.training is None:
            names = [case.name for case in self._cases]
            return Rounds(plan, cases=names, chance=chance, clock=clock, say=say, tick=self._progress.tick)
        count = self._progress.epochs
        return TrainingRounds(plan, plan.training, chance=chance, clock=clock, say=say, count=count, note=self._note_epoch)

    def _arm(self, setup: ArmSetup, meeting: Meeting) -> ArmLaunch:
        folder = self._folder.launch_folder(self.number, setup.name)
        for old in [*folder.glob("*.log"), *self._events_folder(setup.name).glob(EVENT_FILES)]:
            old.unlink()
        session = ArmSession(setup, launch=self.number, folder=folder, meeting=meeting)
        record = LaunchRecord(
            comparison_id=self._folder.root.name,
            plan_digest=self.plan.digest(),
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
        return ArmLaunch(session=session, record=record, say=self._say)

    def run(self) -> None:
        """Measure; every arm's record is written, also when this is interrupted. Nothing is left running."""
        try:
            if self.measure.mode == "interleaved":
                self._run_interleaved()
            else:
                self._run_sequential()
        except BaseException:
            for arm in self.arms.values():
                arm.record.complete = arm.record.complete and arm.record.status != "ok"
            raise
        finally:
            for arm in self.arms.values():
                arm.session.end()
                self._write(arm)

    def _run_interleaved(self) -> None:
        ranks = sum(arm.record.world_size for arm in self.arms.values())
        self._say(f"starting {len(self.arms)} arms, {ranks} ranks in all")
        for arm in self.arms.values():
            arm.attempt(self._start)
        for arm in self.arms.values():
            arm.attempt(self._await_ready)
        self._measure(list(self.arms.values()), seconds=self.measure.seconds_per_launch)
        self._finish_all(list(self.arms.values()))

    def _run_sequential(self) -> None:
        order = shuffled(list(self.arms.values()), self._chance)
        done: list[ArmLaunch] = []
        for arm in order:
            self._say(f"starting {arm.session.name} x {arm.record.world_size} ranks")
            arm.attempt(self._start)
            arm.attempt(self._await_ready)
            done.append(arm)
            self._measure([arm], known=done, seconds=self.measure.seconds_per_launch / len(order))
            self._finish_all([arm])

    def _measure(self, arms: Sequence[ArmLaunch], *, known: Sequence[ArmLaunch] | None = None, seconds: float) -> None:
        """Gates, then rounds of those that passed."""
        open_gates(arms, known=known, measurement=self.measure, say=self._say)
        self.clock.starting_s += self.clock.elapsed_s - self.clock.starting_s - self.clock.training_s
        self._rounds.run(arms, seconds=seconds)

    def _start(self, arm: ArmLaunch) -> None:
        arm.session.start(self._job(arm.session.setup))

    def _job(self, setup: ArmSetup) -> Job:
        plan = setup.plan
        return Job(
            arm=setup.name,
            backend=setup.arm.backend,
            transport=setup.transport,
            options=setup.arm.options,
            workload=plan.workload,
            workload_options=plan.workload_options,
            local_batch_size=plan.local_batch_size,
            micro_steps=plan.micro_steps,
            world_size=plan.world_size,
            seed=self._seed,
            device=plan.device,
            precision=plan.precision,
            max_gradient_norm=plan.max_gradient_norm,
            training=plan.training,
            learning_rate_scale=self.plan.world_size * self.plan.micro_steps if plan.training else None,
        )

    @property
    def _seed(self) -> int:
        """Trainings to the end differ by their seeds; blocks are to differ by nothing."""
        return self.plan.seed + (self.number if self.plan.training else 0)

    def _await_ready(self, arm: ArmLaunch) -> None:
        replies = arm.session.await_ready()
        arm.record.ranks = [reply.report for reply in replies if reply.report]
        arm.record.hosts = sorted({rank.host for rank in arm.record.ranks})
        arm.session.freeze()

    def _finish_all(self, arms: Sequence[ArmLaunch]) -> None:
        """All end at once: leaving takes seconds, and is not measured."""
        for arm in arms:
            arm.attempt(lambda arm: arm.session.ask_to_finish())
        for arm in arms:
            arm.attempt(self._finish)

    def _finish(self, arm: ArmLaunch) -> None:
        replies = arm.session.finish()
        last = [reply.report for reply in replies if reply.report]
        arm.record.ranks = [with_first_optimizer(new, old) for new, old in zip(last, arm.record.ranks, strict=True)]
        arm.record.peak_memory_bytes = [reply.peak_memory_bytes for reply in replies if reply.peak_memory_bytes is not None]

    def _write(self, arm: ArmLaunch) -> None:
        arm.record.exit_codes = arm.session.exit_codes
        self._folder.write_launch(arm.record, steps_table(arm.rows))
        if arm.rows and not self._cases and self.plan.training is None:
            self._event_log(arm).rounds(arm.rows)
        if arm.session.name in self._events:
            self._events.pop(arm.session.name).close()

    def _note_epoch(self, arm: ArmLaunch, epoch: EpochRecord, rows: Sequence[Row]) -> None:
        self._event_log(arm).epoch(epoch, rows)

    def _event_log(self, arm: ArmLaunch) -> EventLog:
        """Opened when there is something to write."""
        name = arm.session.name
        if name not in self._events:
            self._events[name] = EventLog(self._events_folder(name), sample_unit=arm.record.sample_unit)
        return self._events[name]

    def _events_folder(self, arm: str) -> Path:
        run = f"seed-{self._seed}" if self.plan.training else f"launch-{self.number}"
        return self._folder.events_folder(arm, run)
