"""One launch of a comparison: all arms run at the same time and have their blocks (or epochs) in
random order.

Arms that wait are stopped. Each arm gets a record, a table of raw steps and a folder of TensorBoard
events, whatever happens.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measurement.conditions.same_environment import plan_digest
from measurement.errors import LaunchError
from measurement.plans.plan import Plan
from measurement.plans.settings import EpochRecord
from measurement.rank_agreement import agreement
from measurement.records.block import BlockRecord
from measurement.records.record import Case, LaunchRecord
from measurement.records.results import ResultsFolder
from runners.driver.gates import compare_conditions, require_together, run_gates
from runners.driver.rounds import ITERATIONS, RoundLimit, Rounds, TrainingRounds, shuffled
from runners.planning.arm_specs import PlannedArm
from runners.planning.arms import job_of
from runners.planning.workload import WorkloadSetup
from runners.progress import LaunchProgress, TensorboardLog
from runners.protocol import StartedReply
from runners.scripts.script_setup import SharedInitialState
from runners.session.arm_run import ArmRun, Session
from runners.session.diagnosis import ArmFailed

KEEP_EVERY_S = 30.0
"""At most these seconds of measurements, and a round or an epoch, are lost with the driver."""
MAX_PADDING = 4096
"""The padding has fewer bytes than this: a page, after which the stack's position in it repeats."""
RECORDED_OF_JOB = {"arm", "backend", "options", "workload", "workload_options", "world_size"}


@dataclass(kw_only=True, eq=False)
class Launch:
    """Runs one launch: start, gates, rounds, end. Making it starts nothing."""

    plan: Plan
    setups: Sequence[PlannedArm]
    """The arms to start."""
    workload: WorkloadSetup | None = None
    """What all arms train. None: arms are scripts, which have neither gate nor floor."""
    state: SharedInitialState | None = None
    """The parameters with which all scripts start; None: each has its own."""
    show_scripts: Callable[[Sequence[LaunchRecord]], None] | None = None
    """Shows which files running scripts write and, once all have started, their differences."""
    cases: Sequence[Case] = ()
    """A micro-benchmark's."""
    number: int
    folder: ResultsFolder
    open_session: Callable[..., Session]
    """Makes an arm's session; called with the arm and the keyword arguments of ``ArmSession``."""
    progress: LaunchProgress
    events_folder: Callable[[str], Path] | None = None
    """Returns the folder of an arm's TensorBoard events, by its name. None: none are written."""
    show_epoch: Callable[[LaunchRecord, EpochRecord], None] | None = None
    """Called with each epoch that an arm has trained."""
    refused: Mapping[str, LaunchRecord] = field(default_factory=dict)
    """By name, the rehearsal's records of arms that failed in it: they are rows of the report and
    are not started."""
    limit: RoundLimit | None = None
    """When there are enough rounds. None: as the plan's lengths say."""
    tries: int | None = None
    """See ``Job.tries``."""
    act: Callable[[ArmRun], None] | None = None
    """What is done with each arm instead of rounds and gate, such as a trace."""
    notes: list[str] = field(default_factory=list, init=False)
    """The ranks' notes from their trial of the workload."""
    starting_s: float = field(default=0.0, init=False)
    """Seconds before the rounds that were not spent on measuring."""

    def __post_init__(self) -> None:
        self.measure = self.plan.measurement
        self._began = self._kept_at_s = time.monotonic()
        self._is_interleaved = self.measure.mode == "interleaved"
        self._gate_comes_first = self.workload is not None and self.workload.gate_comes_first(
            self.plan.training
        )
        self._rng = random.Random(f"{self.plan.seed}/{self.number}")
        self._padding_bytes = random.Random(f"{self.plan.seed}/{self.number}/padding").randrange(
            1, MAX_PADDING
        )
        self._wanted_rounds = self.limit.rounds if self.limit else None
        self._rounds = self._new_rounds()
        self._events: dict[str, TensorboardLog] = {}
        self.arms = [self._arm(setup) for setup in self.setups]
        for arm in self.arms:
            if arm.record.arm in self.refused:
                arm.refuse(self.refused[arm.record.arm])

    @property
    def failed(self) -> dict[str, LaunchRecord]:
        """The records of the arms that failed or were wrong, by name."""
        return {arm.record.arm: arm.record for arm in self.arms if arm.record.status != "ok"}

    def _new_rounds(self) -> Rounds | TrainingRounds:
        if self.plan.training is not None:
            return TrainingRounds(
                self.plan,
                self.plan.training,
                rng=self._rng,
                progress=self.progress,
                note=self._note_epoch,
            )
        at_a_time = 1 if self._is_interleaved else len(self.setups)
        return Rounds(
            self.plan,
            cases=[case.name for case in self.cases],
            rng=self._rng,
            progress=self.progress,
            seconds=self.measure.seconds_per_launch / at_a_time,
            keep=self._keep,
            is_enough=self._is_enough if self.limit else None,
        )

    def _is_enough(self, rounds: int, seconds: float) -> bool:
        """Whether the budget has no more rounds for this launch.

        Arms that run one at a time have as many as the first.
        """
        assert self.limit is not None
        if self._wanted_rounds is not None and not self._is_interleaved:
            return rounds >= self._wanted_rounds
        number = 1 if self._is_interleaved else len(self.arms)
        if self.limit.is_reached(rounds, seconds * number, start_s=self.starting_s * number):
            self._wanted_rounds = rounds
            return True
        return False

    def _arm(self, setup: PlannedArm) -> ArmRun:
        folder = self.folder.launch_folder(self.number, setup.name)
        for old in folder.glob("*.log"):
            old.unlink()
        session = self.open_session(
            setup,
            launch=self.number,
            folder=folder,
            say=self.progress.say,
            state=(
                self.state.agent_settings(is_baseline=setup.name == self.plan.baseline)
                if self.state
                else None
            ),
            padding_bytes=self._padding_bytes,
        )
        job = job_of(
            setup.plan,
            setup.name,
            setup.arm,
            transport=setup.transport,
            launch=self.number,
            global_plan=self.plan,
        )
        job = job.model_copy(update={"tries": self.tries, "gate_batch_size": setup.gate_batch_size})
        fields: dict[str, Any] = {
            **job.model_dump(include=RECORDED_OF_JOB),
            "comparison_id": self.folder.root.name,
            "plan_digest": plan_digest(self.plan),
            "launch": self.number,
            "role": self.plan.role(setup.name),
            "status": "ok",
            "transport": setup.transport or "none",
            "launcher": setup.launcher_reference,
            "environment": dict(setup.arm.environment),
            "command": session.command(job.seed),
            "commands": session.commands_as_run(),
            "cases": list(self.cases),
            "sample_unit": self.workload.workload.sample_unit if self.workload else "samples",
            "padding_bytes": self._padding_bytes,
        }
        record = LaunchRecord(**fields | dict(setup.recorded))
        lines = setup.trial.lines if setup.trial else []
        return ArmRun(session=session, job=job, record=record, say=self.progress.say, lines=lines)

    def run(self) -> None:
        """Run the launch.

        Every arm's record is written and nothing is left running, also after an interruption.
        """
        is_whole = False
        try:
            order = self._order()
            if self._is_interleaved and order:
                self._run(order, compared=self.arms)
            else:
                for number, arm in enumerate(order, start=1):
                    self._run([arm], compared=order[:number])
            is_whole = True
        finally:
            self._end_all(is_whole=is_whole)

    def _order(self) -> list[ArmRun]:
        """The arms in the order of their start: the one that saves the initial state first.

        None if too few passed the trial.
        """
        if self.act is None and self.refused and not is_comparable(self.plan, self.refused):
            return []
        order = self.arms if self.act else shuffled(self.arms, self._rng)
        saves = self.plan.baseline if self.state and self.state.is_missing else None
        return sorted(order, key=lambda arm: arm.session.name != saves)

    def _end_all(self, *, is_whole: bool) -> None:
        """End every arm, then write every record, even if one of them fails."""
        for arm in self.arms:
            try:
                arm.session.end()
            except ArmFailed as failed:
                if arm.is_running:
                    arm.fail(failed)
        for arm in self.arms:
            arm.record.complete = is_whole or arm.record.status != "ok"
            arm.record.launch_s = time.monotonic() - self._began
        with ExitStack() as stack:
            for arm in self.arms:
                stack.callback(self._write, arm)

    def _keep(self) -> None:
        """Write what was measured so far every ``KEEP_EVERY_S``, so that a killed driver leaves
        it.
        """
        if time.monotonic() - self._kept_at_s < KEEP_EVERY_S:
            return
        for arm in self.arms:
            if arm.is_running and arm.record.blocks:
                self.folder.write_launch(arm.record.model_copy(update={"complete": False}))
        self._kept_at_s = time.monotonic()

    def _run(self, arms: Sequence[ArmRun], *, compared: Sequence[ArmRun]) -> None:
        """Start these arms together, measure them and end them; ``compared``: all arms to compare
        so far, including these.
        """
        self.progress.say(f"starting {', '.join(arm.session.name for arm in arms)}")
        self._start(arms)
        self._compare(compared)
        self._measure(arms, compared)
        for arm in arms:  # all at the same time: it takes seconds and is not measured
            arm.run_unless_failed(lambda arm: arm.session.ask_to_finish())
        for arm in arms:
            arm.run_unless_failed(self._finish)

    def _start(self, arms: Sequence[ArmRun]) -> None:
        """Start these arms together and wait until they are ready.

        A baseline that saves the initial state starts first.
        """
        first = arms[:1] if self.state and self.state.is_missing else []
        self._start_together(first)
        for arm in first:
            arm.run_unless_failed(self._share_state)
        self._start_together([arm for arm in arms if arm not in first])

    def _start_together(self, arms: Sequence[ArmRun]) -> None:
        for arm in arms:
            arm.run_unless_failed(lambda arm: arm.session.start(arm.job))
        for arm in arms:
            arm.run_unless_failed(lambda arm: self._note_ready(arm, arm.session.await_ready()))

    def _share_state(self, arm: ArmRun) -> None:
        """Copy the initial state to all hosts; if that fails, the baseline fails."""
        assert self.state
        try:
            self.state.share(arm.record.ranks)
        except LaunchError as error:
            raise ArmFailed(str(error)) from error

    def _compare(self, compared: Sequence[ArmRun]) -> None:
        """Compare the arms with each other before anything is timed."""
        compare_conditions([arm for arm in compared if "gate" in arm.can])
        if not any(arm.record.scripts for arm in compared):
            return
        running = [arm for arm in compared if arm.is_running]
        if any(script.samples_from is None for arm in compared for script in arm.record.scripts):
            for arm in running:
                arm.record.sample_unit = ITERATIONS
        if self.show_scripts is not None:
            self.show_scripts([arm.record for arm in compared])
        for arm in running:
            ranks_agree = agreement(arm.record.scripts)
            if ranks_agree is not None and ranks_agree.is_wrong:
                arm.fail(ArmFailed(ranks_agree.sentence(arm.record.arm) or "", status="wrong"))

    def _measure(self, arms: Sequence[ArmRun], compared: Sequence[ArmRun]) -> None:
        """Run rounds and gates of arms that are ready, or ``act``.

        Scripts without another arm to compare with have no rounds.
        """
        if self.act is not None:
            for arm in arms:
                arm.run_unless_failed(self.act)
        elif not any("gate" in arm.can for arm in arms):
            if is_comparable(self.plan, self.failed):
                self._run_rounds(arms)
        elif self._gate_comes_first:
            self._run_gates(arms, compared)
            self._run_rounds(arms)
        else:
            self._run_rounds(arms)
            self._run_gates(arms, compared)

    def _run_rounds(self, arms: Sequence[ArmRun]) -> None:
        self.starting_s = time.monotonic() - self._began - self._rounds.measuring_s
        self._rounds.run(arms)

    def _run_gates(self, arms: Sequence[ArmRun], compared: Sequence[ArmRun]) -> None:
        run_gates(
            [arm for arm in arms if "gate" in arm.can],
            compared=[arm for arm in compared if "gate" in arm.can],
            measurement=self.measure,
            after_blocks=not self._gate_comes_first,
        )

    def _note_ready(self, arm: ArmRun, replies: Sequence[StartedReply]) -> None:
        arm.record.ranks = arm.ready = [reply.report for reply in replies]
        arm.record.world_size = len(replies)
        arm.can = frozenset.intersection(*(frozenset(reply.can) for reply in replies))
        arm.record.scripts = [reply.script for reply in replies if reply.script]
        for script, lines in zip(arm.record.scripts, arm.lines, strict=False):
            script.lines = lines
        arm.record.hosts = sorted({rank.host for rank in arm.record.ranks})
        arm.record.start_s = time.monotonic() - arm.session.started_s
        self.notes += [note for note in replies[0].notes if note not in self.notes]

    def _finish(self, arm: ArmRun) -> None:
        replies = arm.session.finish()
        for reply, old in zip(replies, arm.record.ranks, strict=True):
            # the last report knows the rebuilt buckets, but may have no model
            reply.report.optimizer = old.optimizer or reply.report.optimizer
            reply.report.model = old.model or reply.report.model
        arm.record.ranks = [reply.report for reply in replies]
        arm.record.peak_memory_bytes = [reply.peak_memory_bytes for reply in replies]
        for script, reply in zip(arm.record.scripts, replies, strict=False):
            script.written_files = sorted({*script.written_files, *reply.written_files})
        if "block" in arm.can:
            require_together([reply.drift for reply in replies])

    def _write(self, arm: ArmRun) -> None:
        arm.record.exit_codes, arm.record.script_starts = arm.session.exit_codes, arm.session.starts
        self.folder.write_launch(arm.record)
        try:
            if arm.record.blocks and not self.cases and self.plan.training is None:
                for log in self._event_logs(arm):
                    log.rounds(arm.record.blocks)
            if arm.session.name in self._events:
                self._events.pop(arm.session.name).close()
        except OSError as error:  # the records are written all the same
            self.progress.say(
                f"TensorBoard's events of {arm.session.name} cannot be written:"
                f" {error.strerror or error}"
            )

    def _note_epoch(self, arm: ArmRun, epoch: EpochRecord, block: BlockRecord) -> None:
        if self.show_epoch is not None:
            self.show_epoch(arm.record, epoch)
        for log in self._event_logs(arm):
            log.epoch(epoch, block)
        self._keep()

    def _event_logs(self, arm: ArmRun) -> list[TensorboardLog]:
        """The log of an arm, opened at its first use; none if no events are written."""
        name = arm.session.name
        if self.events_folder is not None and name not in self._events:
            self._events[name] = TensorboardLog(
                self.events_folder(name), sample_unit=arm.record.sample_unit
            )
        return [self._events[name]] if name in self._events else []


def is_comparable(plan: Plan, failed: Collection[str]) -> bool:
    """Whether the baseline and another arm have not failed: a candidate or, without candidates, the
    control.
    """
    others = [name for name in plan.compared_arms() if name != plan.baseline]
    candidates = [name for name in others if name in plan.arms] or others
    return plan.baseline not in failed and (
        plan.is_alone or any(name not in failed for name in candidates)
    )
