"""One launch of a comparison: all arms up at once, blocks handed out in random order, idle arms frozen.

What a launch yields is one record and one table of raw steps per arm, whatever happened to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from measurement.plan import Plan
from measurement.record import Case, LaunchRecord
from measurement.results import ResultsFolder, steps_table
from runners.arm_launch import ArmLaunch, Clock, Say, with_first_optimizer
from runners.arm_session import ArmSession, Meeting
from runners.gates import open_gates
from runners.job import Job
from runners.planning import ArmSetup, WorkloadSetup
from runners.rounds import Rounds, shuffled


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
        say: Say,
        tick: Callable[[float], None],
    ) -> None:
        self.plan, self.measure = plan, plan.measurement
        self.number = number
        self.clock = Clock()
        self._workload = workload
        self._cases = cases
        self._folder = folder
        self._say = say
        self._chance = random.Random(f"{plan.seed}/{number}")
        names = [case.name for case in cases]
        self._rounds = Rounds(plan, cases=names, chance=self._chance, clock=self.clock, say=say, tick=tick)
        self.arms = {name: self._arm(setup, meeting) for name, setup in arms.items()}

    def _arm(self, setup: ArmSetup, meeting: Meeting) -> ArmLaunch:
        folder = self._folder.launch_folder(self.number, setup.name)
        for old in folder.glob("*.log"):
            old.unlink()
        session = ArmSession(setup, self.plan, launch=self.number, folder=folder, meeting=meeting)
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
            world_size=self.plan.world_size,
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
        self._say(f"starting {len(self.arms)} arms x {self.plan.world_size} ranks")
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
            self._say(f"starting {arm.session.name} x {self.plan.world_size} ranks")
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
        plan = self.plan
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
            seed=plan.seed,
            device=plan.device,
        )

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
