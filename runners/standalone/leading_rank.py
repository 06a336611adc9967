"""Rank 0 of a standalone run: it gives all ranks commands as a driver would, writes the record and
prints the table.
"""

from __future__ import annotations

import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from backends import Backend
from measurement.errors import ParityError
from measurement.plans.plan import Plan
from measurement.plans.settings import EpochRecord, TrainingSettings
from measurement.records.record import LaunchRecord
from measurement.records.results import ResultsFolder
from runners.driver.launch import Launch
from runners.planning.arm_specs import PlannedArm
from runners.processes.process_exit import interrupted_code
from runners.progress import LaunchProgress
from runners.protocol import (
    Command,
    FinishCommand,
    FinishedReply,
    Job,
    StartCommand,
    StartedReply,
)
from runners.rank.engine import Engine
from runners.rank.worker import EngineRank, describe_error
from runners.session.arm_run import Exchange, Expected
from runners.session.diagnosis import ArmFailed

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
"""Ignored while rank 0 writes what was measured before a failure. Launchers end ranks whose peer
has failed, in milliseconds. They also end loaders' processes, after which torch raises at
SIGCHLD."""


class CollectiveSession:
    """The only arm of a standalone run, on rank 0, which carries out every command as the other
    ranks do.

    Commands and replies go over the backend's collectives, and never while steps are timed.
    """

    starts = 1
    restarting_s = 0.0

    def __init__(
        self, name: str, *, rank: EngineRank, backend: Backend, folder: Path, started_s: float
    ) -> None:
        """``folder``: where ranks write tracebacks; ``started_s``: when they began, by the
        monotonic clock.
        """
        self.name, self.started_s = name, started_s
        self.exit_codes: list[int | None] = []
        self.error: BaseException | None = None
        """What rank 0 raised in a command. The cause may be a lost rank."""
        self._rank, self._backend, self._folder = rank, backend, folder
        self._is_over = self._is_in_step = self._is_ending = False
        """Whether the last reports have come; whether all ranks wait for a command; whether only
        the record is to be written."""

    def command(self, seed: int) -> str:
        """Nothing: a rank does not know the command that started all ranks."""
        return ""

    def commands_as_run(self) -> list[dict[str, Any]]:
        """Rank 0's command."""
        return [{"host": socket.gethostname(), "argv": sys.orig_argv}]

    def log_of(self, rank: int) -> Path:
        """The file of a rank's traceback."""
        return self._folder / f"rank-{rank}-traceback.txt"

    def start(self, job: Job) -> None:
        """Nothing: the ranks have been started, each with this job."""

    def await_ready(self) -> list[StartedReply]:
        """Return the first reports."""
        return self.exchange(StartCommand(), StartedReply, timeout_s=0.0).replies

    def exchange(
        self, command: Command, expected: type[Expected], *, timeout_s: float
    ) -> Exchange[Expected]:
        """Have all ranks carry out a command.

        Ranks wait for each other as long as the backend lets them.

        Raises:
            ArmFailed: this rank raised an exception.
        """
        began, self._is_in_step = time.monotonic(), False
        try:
            self._backend.broadcast_bytes(command.model_dump_json().encode())
            replies = self._backend.all_gather_bytes(
                self._rank.answer(command).model_dump_json().encode()
            )
        except Exception as error:  # it goes into the record, and the run raises it again
            self.error = error
            raise _rank_0_failed(describe_error(error).message) from error
        self._is_in_step = True
        return Exchange(
            replies=[expected.model_validate_json(reply) for reply in replies],
            took_s=time.monotonic() - began,
            hosts={},
        )

    def ask_to_finish(self) -> None:
        """Nothing: ``finish`` asks."""

    def finish(self) -> list[FinishedReply]:
        """Return the last reports. All ranks then wait for ``part``."""
        replies = self.exchange(FinishCommand(), FinishedReply, timeout_s=0.0).replies
        self._is_over = True
        return replies

    def end(self) -> None:
        """Ignore signals, so that incomplete measurements can be written.

        Raises:
            ArmFailed: a launcher ends this rank since a peer has failed, in a command or between
                two of them.
        """
        if self._is_over or self._is_ending:
            return
        self._is_ending = True
        for ending in IGNORED_SIGNALS:
            signal.signal(ending, _ignore)
        if interrupted_code() == 128 + signal.SIGTERM:
            raise _rank_0_failed("ended by SIGTERM, as launchers do when a peer has failed")

    def part(self, error: BaseException | None = None) -> None:
        """Let the other ranks end, with this error, unless they are in a step or have ended."""
        if self._is_in_step:
            if not self._is_over:
                self.finish()
            self._backend.broadcast_bytes(str(error or " ").encode())


def _rank_0_failed(why: str) -> ArmFailed:
    return ArmFailed(f"rank 0: {why}", ranks=[0], hosts=[socket.gethostname()])


def _ignore(_number: int, _frame: object) -> None:
    """Ignore a signal. Unlike with SIG_IGN, ended children can still be waited for."""


def lead(
    session: CollectiveSession,
    engine: Engine,
    *,
    plan: Plan,
    folder: ResultsFolder,
    tensorboard: Path | None,
) -> None:
    """Run the only launch of a plan, whose arm these ranks are, write its record and print the
    result.

    Raises:
        ParityError: the arm computes wrongly, or its ranks have drifted apart.
        RecordError: the record cannot be written.
        Exception: what this rank raised in a command; earlier measurements are in the record.
    """
    epochs = plan.training.epochs if plan.training else 0
    arm = PlannedArm(
        name=session.name,
        arm=plan.arms[session.name],
        plan=plan,
        launcher_reference=engine.world.launcher,
        transport=engine.backend.describe().get("transport"),
        recorded={"sample_unit": engine.runner.workload.sample_unit, "padding_bytes": None},
    )
    folder.write_plan(plan)
    launch = Launch(
        plan=plan,
        setups=[arm],
        workload=engine.setup,
        cases=list(engine.runner.cases.values()),
        number=0,
        folder=folder,
        open_session=lambda *_, **__: session,
        progress=LaunchProgress(seconds_per_launch=1.0, console=Console(quiet=True)),
        events_folder=(lambda _: tensorboard) if tensorboard else None,
        show_epoch=lambda record, epoch: print(
            epoch_line(epoch, epochs=epochs, unit=record.sample_unit), flush=True
        ),
    )
    launch.run()
    (record,) = (arm.record for arm in launch.arms)
    if session.error is not None:
        raise session.error
    if record.error is not None:
        wrong = f"backend '{record.backend}' computes wrongly, so that no timing of it counts: "
        raise ParityError((wrong if record.status == "wrong" else "") + record.error.message)
    _show(record, plan, where=folder.launch_folder(0, record.arm) / "record.json")


def _show(record: LaunchRecord, plan: Plan, *, where: Path) -> None:
    """Print the table, or how a training ended, and the path of the record.

    Tables' modules are imported only now, after this rank's peak memory was read.
    """
    from measurement.records.step_tables import steps_of
    from reports.formats import new_console
    from runners.standalone.tables import cases_table, throughput_table

    console = new_console(plain=record.world_size > 1)  # mpirun always gives ranks a terminal
    if plan.training:
        print(outcome(plan.training, record.epochs), flush=True)
    else:
        steps = steps_of(record.blocks)
        console.print(
            cases_table(record, steps) if record.cases else throughput_table(record, steps)
        )
    console.print(f"record: {where}", markup=False, highlight=False, soft_wrap=True)


def epoch_line(epoch: EpochRecord, *, epochs: int, unit: str) -> str:
    """Say how an epoch went, in one line."""
    figures = "  ".join(
        f"{name.replace('_', ' ')} {value:.4f}" for name, value in epoch.figures().items()
    )
    return (
        f"epoch {epoch.epoch + 1}/{epochs}  {figures}  {epoch.count / epoch.train_s:,.1f} {unit}/s"
        f"  learning rate {epoch.learning_rates[-1]:.4g}"
    )


def outcome(training: TrainingSettings, epochs: list[EpochRecord]) -> str:
    """Say how the training ended, with the time to accuracy if a target was set."""
    trained = f"{sum(epoch.train_s for epoch in epochs):.1f} s of training"
    target = training.target_accuracy
    if target is None:
        return trained
    reached_s = training.time_to_accuracy_s(epochs)
    if reached_s is not None:
        first = next(epoch for epoch in epochs if training.is_reached(epoch))
        return (
            f"target accuracy {target:g} reached in epoch {first.epoch + 1}: {reached_s:.1f} s of"
            " training"
        )
    return f"target accuracy {target:g} not reached in {len(epochs)} epochs: {trained}"
