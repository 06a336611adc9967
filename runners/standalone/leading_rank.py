"""Rank 0 of a standalone run: it leads all ranks as a driver would, writes the record and prints the table."""

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
from runners.driver.arm_session import Exchange, Expected
from runners.driver.diagnosis import ArmFailed
from runners.driver.launch import Launch
from runners.driver.progress import LaunchProgress
from runners.planning.arm_specs import PlannedArm
from runners.processes.process_exit import interrupted_code
from runners.protocol.messages import Command, FinishCommand, FinishedReply, Job, StartCommand, StartedReply
from runners.rank.engine import Engine
from runners.rank.remote_error import describe_error
from runners.rank.worker import EngineRank

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
"""While rank 0 writes what was measured before a failure. Launchers end ranks whose peer has failed, in milliseconds.
They end loaders' processes, too, for which torch raises at SIGCHLD."""


class CollectiveSession:
    """The arm that a standalone run is, seen from rank 0, which carries every command out as the other ranks do.

    Commands and replies go over the backend's own collectives, and never while steps are timed.
    """

    starts = 1
    restarting_s = 0.0
    counts_iterations = False

    def __init__(self, name: str, *, rank: EngineRank, backend: Backend, folder: Path, started_s: float) -> None:
        """``folder``: where ranks leave the tracebacks of their errors; ``started_s``: when they began, by the monotonic clock."""
        self.name, self.started_s = name, started_s
        self.exit_codes: list[int | None] = []
        self.error: BaseException | None = None
        """What rank 0 raised in a command. It may be that another rank has gone."""
        self._rank, self._backend, self._folder = rank, backend, folder
        self._is_over = self._is_in_step = self._is_ending = False
        """Whether the last reports have come, all ranks wait for the next command, and only the record is still to be written."""

    def command(self, seed: int) -> str:
        """Nothing: what a person typed to start all ranks is not known to one of them."""
        return ""

    def commands_as_run(self) -> list[dict[str, Any]]:
        """Rank 0's own."""
        return [{"host": socket.gethostname(), "argv": sys.orig_argv}]

    def log_of(self, rank: int) -> Path:
        """Where a rank leaves the traceback of its error."""
        return self._folder / f"rank-{rank}-traceback.txt"

    def start(self, job: Job) -> None:
        """Nothing: the ranks have been started, each with this job."""

    def await_ready(self) -> list[StartedReply]:
        """Return the first reports."""
        return self.exchange(StartCommand(), StartedReply, timeout_s=0.0).replies

    def exchange(self, command: Command, expected: type[Expected], *, timeout_s: float) -> Exchange[Expected]:
        """Have all ranks carry out a command. Ranks wait for each other as long as the backend lets them.

        Raises:
            ArmFailed: this rank raised an exception.
        """
        began, self._is_in_step = time.monotonic(), False
        try:
            self._backend.broadcast_bytes(command.model_dump_json().encode())
            replies = self._backend.all_gather_bytes(self._rank.answer(command).model_dump_json().encode())
        except Exception as error:  # the record tells of it, and the run raises it again
            self.error = error
            raise _rank_0_failed(describe_error(error).message) from error
        self._is_in_step = True
        return Exchange(
            replies=[expected.model_validate_json(reply) for reply in replies], took_s=time.monotonic() - began, hosts={}
        )

    def ask_to_finish(self) -> None:
        """Nothing: ``finish`` asks."""

    def finish(self) -> list[FinishedReply]:
        """Return the last reports; all ranks wait for ``part`` then."""
        replies = self.exchange(FinishCommand(), FinishedReply, timeout_s=0.0).replies
        self._is_over = True
        return replies

    def end(self) -> None:
        """Let nothing disturb the writing of what was measured, where not all of it was.

        Raises:
            ArmFailed: a launcher ends this rank since a peer has failed, in a command or between two of them.
        """
        if self._is_over or self._is_ending:
            return
        self._is_ending = True
        for ending in IGNORED_SIGNALS:
            signal.signal(ending, _ignore)
        if interrupted_code() == 128 + signal.SIGTERM:
            raise _rank_0_failed("ended by SIGTERM, as launchers do when a peer has failed")

    def part(self, error: BaseException | None = None) -> None:
        """Let the other ranks end, for this error; not where they wait for something else, or have gone."""
        if self._is_in_step:
            if not self._is_over:
                self.finish()
            self._backend.broadcast_bytes(str(error or " ").encode())


def _rank_0_failed(why: str) -> ArmFailed:
    return ArmFailed(f"rank 0: {why}", ranks=[0], hosts=[socket.gethostname()])


def _ignore(_number: int, _frame: object) -> None:
    """Unlike SIG_IGN it leaves ended children to who waits for them."""


def lead(session: CollectiveSession, engine: Engine, *, plan: Plan, folder: ResultsFolder, tensorboard: Path | None) -> None:
    """Run the one launch of a plan whose arm these ranks are, write its record and print what came out.

    Raises:
        ParityError: the arm computes wrongly, or its ranks have drifted apart.
        RecordError: the record cannot be written.
        Exception: whatever this rank raised in a command; what had been measured is in the record.
    """
    epochs = plan.training.epochs if plan.training else 0
    arm = PlannedArm(
        name=session.name,
        arm=plan.arms[session.name],
        plan=plan,
        launcher_reference=engine.world.launcher,
        transport=engine.backend.describe().get("transport"),
        recorded={"sample_unit": engine.sample_unit, "padding_bytes": None},
    )
    folder.write_plan(plan)
    launch = Launch(
        plan=plan,
        setups=[arm],
        workload=engine.setup,
        cases=list(engine.cases.values()),
        number=0,
        folder=folder,
        open_session=lambda *_, **__: session,
        progress=LaunchProgress(seconds_per_launch=1.0, console=Console(quiet=True)),
        events_folder=(lambda _: tensorboard) if tensorboard else None,
        show_epoch=lambda record, epoch: print(epoch_line(epoch, epochs=epochs, unit=record.sample_unit), flush=True),
    )
    launch.run()
    (record,) = (arm.record for arm in launch.arms)
    if session.error is not None:
        raise session.error
    if record.error is not None:
        what = f"backend '{record.backend}' computes wrongly, so that no timing of it counts: " if record.status == "wrong" else ""
        raise ParityError(f"{what}{record.error.message}")
    _show(record, plan, where=folder.launch_folder(0, record.arm) / "record.json")


def _show(record: LaunchRecord, plan: Plan, *, where: Path) -> None:
    """Print the table, or how a training ended, and where the record is.

    What tables need is imported now, when the most memory of this rank is known.
    """
    from measurement.records.step_tables import steps_of
    from reports.formats.console import new_console
    from runners.standalone.tables import cases_table, throughput_table

    console = new_console(plain=record.world_size > 1)  # mpirun gives ranks a terminal, whatever its own output is
    if plan.training:
        print(outcome(plan.training, record.epochs), flush=True)
    else:
        steps = steps_of(record.blocks)
        console.print(cases_table(record, steps) if record.cases else throughput_table(record, steps))
    console.print(f"record: {where}", markup=False, highlight=False, soft_wrap=True)


def epoch_line(epoch: EpochRecord, *, epochs: int, unit: str) -> str:
    """Say how an epoch went, in one line."""
    figures = epoch.figures()
    parts = [f"epoch {epoch.epoch + 1:>{len(str(epochs))}}/{epochs}", f"loss {figures['train_loss']:.4f}"]
    if "train_top5" in figures:
        parts.append(f"top-1 {figures['train_top1']:.2%}  top-5 {figures['train_top5']:.2%}")
    if "held_out_loss" in figures:
        top1, top5 = figures["held_out_top1"], figures["held_out_top5"]
        parts.append(f"held out: loss {figures['held_out_loss']:.4f}  top-1 {top1:.2%}  top-5 {top5:.2%}")
    parts += [f"{epoch.count / epoch.train_s:,.1f} {unit}/s", f"learning rate {epoch.learning_rates[-1]:.4g}"]
    return "  ".join(parts)


def outcome(training: TrainingSettings, epochs: list[EpochRecord]) -> str:
    """Say how the training ended, with the time to accuracy if a target was set."""
    trained = f"{sum(epoch.train_s for epoch in epochs):.1f} s of training"
    target = training.target_accuracy
    if target is None:
        return trained
    reached_s = training.time_to_accuracy_s(epochs)
    if reached_s is not None:
        first = next(epoch for epoch in epochs if training.is_reached(epoch))
        return f"target accuracy {target:g} reached in epoch {first.epoch + 1}: {reached_s:.1f} s of training"
    found = [figures["held_out_top1"] for epoch in epochs if "held_out_top1" in (figures := epoch.figures())]
    progress = f"best: {max(found):.4f}" if found else "nothing is held out"
    return f"target accuracy {target:g} not reached in {len(epochs)} epochs ({progress}): {trained}"
