"""One launch of a comparison: all arms up at once, blocks handed out in random order, idle arms frozen.

What a launch yields is one record and one table of raw steps per arm, whatever happened to it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

from measurement.plan import Plan
from measurement.record import BlockRecord, Failure, LaunchRecord
from measurement.results import ResultsFolder, steps_table
from runners.arm_launch import ArmLaunch, Clock, block_rows, with_first_optimizer
from runners.arm_session import ArmFailed, ArmSession, Meeting
from runners.fairness import unasked_differences
from runners.job import BlockReport, Command, Job
from runners.parity import judge
from runners.planning import ArmSetup, WorkloadSetup

PROBE_STEPS = 4
SLOWEST_BLOCK = 4.0
"""A much slower arm's block may take this × the wished length; then all arms take fewer steps."""

Kind = Literal["sync", "local"]
Say = Callable[[str], None]


class Launch:
    """Runs one launch; how many steps fill a block is found anew in each, the same for all its arms."""

    def __init__(
        self,
        plan: Plan,
        arms: dict[str, ArmSetup],
        workload: WorkloadSetup,
        *,
        number: int,
        folder: ResultsFolder,
        meeting: Meeting,
        say: Say,
        tick: Callable[[float], None],
    ) -> None:
        self.plan, self.measure = plan, plan.measurement
        self.number = number
        self.block_steps = plan.measurement.block_steps
        self.clock = Clock()
        self._workload = workload
        self._folder = folder
        self._say = say
        self._tick = tick
        self._turn = 0
        self._chance = random.Random(f"{plan.seed}/{number}")
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
        )
        return ArmLaunch(session=session, record=record)

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
            self._guarded(arm, self._start)
        for arm in self.arms.values():
            self._guarded(arm, self._await_ready)
        self._open_gates(list(self.arms.values()))
        self._measure(list(self.arms.values()), seconds=self.measure.seconds_per_launch)
        self._finish_all(list(self.arms.values()))

    def _run_sequential(self) -> None:
        order = self._shuffled(list(self.arms.values()))
        done: list[ArmLaunch] = []
        for arm in order:
            self._say(f"starting {arm.session.name} x {self.plan.world_size} ranks")
            self._guarded(arm, self._start)
            self._guarded(arm, self._await_ready)
            done.append(arm)
            self._open_gates([arm], known=done)
            self._measure([arm], seconds=self.measure.seconds_per_launch / len(order))
            self._finish_all([arm])

    def _guarded(self, arm: ArmLaunch, act: Callable[[ArmLaunch], None]) -> None:
        """Do something with an arm that still runs; its failure ends it and nothing else."""
        if not arm.is_running:
            return
        try:
            act(arm)
        except ArmFailed as failed:
            self._fail(arm, failed.failure, status=failed.status)

    def _fail(self, arm: ArmLaunch, failure: Failure, *, status: str) -> None:
        arm.record.status = status  # type: ignore[assignment]
        arm.record.error = failure
        arm.session.end()
        self._say(f"{arm.session.name} {status}: {failure.message}")

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

    def _open_gates(self, arms: Sequence[ArmLaunch], *, known: Sequence[ArmLaunch] | None = None) -> None:
        """Parity and fairness: what does not compute the same thing under the same conditions is not timed."""
        for arm in arms:
            if arm.is_running:
                self._say(f"checking gradients of {arm.session.name}")
            self._guarded(arm, self._pass_gate)
        self._compare_conditions(known or arms)
        self.clock.starting_s += self.clock.elapsed_s - self.clock.starting_s - self.clock.training_s

    def _pass_gate(self, arm: ArmLaunch) -> None:
        session = arm.session
        session.thaw()
        session.send(Command(do="parity", steps=self.measure.parity_steps))
        replies = session.receive(timeout_s=self.measure.block_timeout_s)
        arm.record.parity = judge([reply.parity for reply in replies if reply.parity], steps=self.measure.parity_steps)
        arm.record.start_s = time.monotonic() - session.started_s
        session.freeze()
        if not arm.record.parity.passed:
            raise ArmFailed(Failure(message="; ".join(arm.record.parity.failures)), status="wrong")

    def _compare_conditions(self, arms: Sequence[ArmLaunch]) -> None:
        """Every arm against the first that stands, the baseline where it does."""
        standing = sorted((arm for arm in arms if arm.record.status == "ok"), key=lambda arm: arm.record.role != "baseline")
        for arm in standing[1:]:
            first, record = standing[0].record, arm.record
            if first.parity and record.parity and first.parity.samples_digest != record.parity.samples_digest:
                digests = f"{record.parity.samples_digest} against {first.parity.samples_digest}"
                message = f"consumed other samples than {first.arm} (digest {digests})"
                self._fail(arm, Failure(message=message), status="wrong")
                continue
            differences = unasked_differences(first, record)
            if differences:
                message = f"not comparable with {first.arm}: " + "; ".join(differences)
                self._fail(arm, Failure(message=message), status="failed")

    def _measure(self, arms: Sequence[ArmLaunch], *, seconds: float) -> None:
        if not any(arm.is_running for arm in arms):
            return
        self._find_block_steps(arms)
        began = time.monotonic()
        self._say(f"measuring blocks of {self.block_steps} steps")
        for number, items in enumerate(self._rounds(arms)):
            for kind, arm in items:
                self._guarded(arm, partial(self._block, kind=kind, number=number, began=began))
            done = time.monotonic() - began
            self._tick(done)
            is_last = number + 1 >= self.measure.rounds if self.measure.rounds else done >= seconds
            if is_last or not any(arm.is_running for arm in arms):
                break
        for arm in arms:
            arm.record.measuring_s = time.monotonic() - began

    def _rounds(self, arms: Sequence[ArmLaunch]) -> Iterator[list[tuple[Kind, ArmLaunch]]]:
        """Endless rounds: each arm once, in an order of its own; now and then once more without gradient exchange."""
        number = 0
        while True:
            number += 1
            items: list[tuple[Kind, ArmLaunch]] = [("sync", arm) for arm in self._shuffled(arms)]
            if self.measure.local_every and number % self.measure.local_every == 0:
                items += [("local", arm) for arm in self._shuffled(arms)]
            yield items

    def _shuffled(self, arms: Sequence[ArmLaunch]) -> list[ArmLaunch]:
        return self._chance.sample(list(arms), k=len(arms))

    def _find_block_steps(self, arms: Sequence[ArmLaunch]) -> None:
        """How many steps fill a block of the baseline, by an untimed trial; fewer where another arm is far slower."""
        step_s: dict[str, float] = {}

        def probe(arm: ArmLaunch) -> None:
            reports = self._exchange(arm, steps=PROBE_STEPS, kind="sync")
            step_s[arm.session.name] = max(sum(map(sum, report.phases_s)) / PROBE_STEPS for report in reports)

        for arm in arms:
            self._guarded(arm, probe)
        if self.block_steps is None and step_s:
            usual = step_s.get(self.plan.baseline, min(step_s.values()))
            steps = min(self.measure.block_s / usual, SLOWEST_BLOCK * self.measure.block_s / max(step_s.values()))
            self.block_steps = max(1, round(steps))

    def _block(self, arm: ArmLaunch, *, kind: Kind, number: int, began: float) -> None:
        """One block: thaw, train, freeze, keep the raw times."""
        assert self.block_steps is not None
        turn, self._turn = self._turn, self._turn + 1
        started = time.monotonic()
        reports = self._exchange(arm, steps=self.block_steps, kind=kind)
        block = BlockRecord(
            turn=turn,
            round=number,
            block=len(arm.record.blocks),
            kind=kind,
            steps=self.block_steps,
            started_s=started - began,
            wall_s=time.monotonic() - started,
            untimed_s=max(report.untimed_s for report in reports),
        )
        arm.record.blocks.append(block)
        arm.rows += [row for report in reports for row in block_rows(block, report)]

    def _exchange(self, arm: ArmLaunch, *, steps: int, kind: Kind) -> list[BlockReport]:
        session = arm.session
        session.thaw()
        began = time.monotonic()
        command = Command(
            do="block",
            steps=steps,
            warmup_steps=self.measure.warmup_steps,
            kind=kind,
            rebuild=arm.blocks % self.measure.rebuild_every == 0 or kind == "local",
            layout=self._chance.getrandbits(31),
        )
        session.send(command)
        arm.blocks += 1
        replies = session.receive(timeout_s=self.measure.block_timeout_s)
        self.clock.training_s += time.monotonic() - began
        session.freeze()
        return [reply.block for reply in replies if reply.block]

    def _finish_all(self, arms: Sequence[ArmLaunch]) -> None:
        """All end at once: leaving takes seconds, and is not measured."""
        for arm in arms:
            self._guarded(arm, lambda arm: arm.session.ask_to_finish())
        for arm in arms:
            self._guarded(arm, self._finish)

    def _finish(self, arm: ArmLaunch) -> None:
        replies = arm.session.finish()
        last = [reply.report for reply in replies if reply.report]
        arm.record.ranks = [with_first_optimizer(new, old) for new, old in zip(last, arm.record.ranks, strict=True)]
        arm.record.peak_memory_bytes = [reply.peak_memory_bytes for reply in replies if reply.peak_memory_bytes is not None]

    def _write(self, arm: ArmLaunch) -> None:
        arm.record.exit_codes = arm.session.exit_codes
        self._folder.write_launch(arm.record, steps_table(arm.rows))
