"""One rank of an arm under the driver: ``python -m runners.ddp`` (or ``hvd``) with the agent's
variable in its environment.

It starts its supervisor, which passes messages on, redirects its output to a log and answers
commands until ``finish``.

An exception is explained to the workload's author: the error, their line, and what to do.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from measurement.addresses import split_port
from measurement.agent.ringside_agent import users_lines
from measurement.agent.ringside_agent.agent import Agent, Handler, join
from measurement.agent.ringside_agent.machine import peak_memory_bytes
from measurement.agent.ringside_agent.settings import RANK_VARIABLE, Settings
from measurement.errors import LaunchError, PlanError, RingsideError, printable
from measurement.registry import search_beside
from runners.launchers import make_launcher
from runners.launchers.base import RUN_ID, read_world
from runners.processes import remote_results
from runners.protocol import (
    CAUSE_FIRST_S,
    COMMANDS,
    JOBS,
    Answer,
    BlockCommand,
    BlockReply,
    Command,
    EpochCommand,
    FinishCommand,
    FinishedReply,
    GateCommand,
    GateReply,
    StartCommand,
    StartedReply,
    TraceCommand,
    TraceReply,
    mentions_lost_peer,
    read_message,
)
from runners.rank.resources import take_resources

if TYPE_CHECKING:
    from runners.rank.engine import Engine

FOREVER = timedelta(days=30)
REMEDIES = {
    "Expected to have finished reduction in the prior iteration": (
        "DDP waits for the gradients of parameters that took no part in the loss; give the arm"
        " options: {find_unused_parameters: true}, or set requires_grad = False if they are never"
        " trained"
    ),
    "mark a variable ready only once": (
        "DDP met a parameter twice in one backward pass; checkpoint with use_reentrant=False, or "
        "give the arm options: {static_graph: true}"
    ),
    "Expected all tensors to be on the same device": (
        "batches() must yield tensors on the device that it is given, where "
        "the runner moves the model"
    ),
    "No space left on device": (
        "see 'df -h /dev/shm', through which loader processes pass tensors (docker run"
        " --shm-size=8g gives more), TMPDIR and the results folder; or set loader_workers: 0"
    ),
    "Cannot re-initialize CUDA in forked subprocess": (
        "loader processes must not touch the GPU; move batches there in batches()"
    ),
}
"""Remedies for errors of PyTorch that name none, or one for another interface."""


def main(settings: Settings) -> NoReturn:
    """Answer the driver's commands. An exception is reported to the driver and ends the rank."""
    search_beside(Path.cwd())
    # it was for this process only: programs of the workload import from their folder
    os.environ.pop("PYTHONSAFEPATH", None)
    os.environ[RANK_VARIABLE] = str(os.getpid())
    world = read_world(os.environ, make_launcher(settings.launcher).rank_variables)
    agent = Agent(channel := join(settings, world))
    folder = (
        Path(settings.log_folder)
        if settings.log_folder
        else remote_results.make_folder(os.environ[RUN_ID])
    )
    log = folder / remote_results.log_name(world.rank)
    redirect_output(log)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)

    def start() -> Engine:
        job = read_message(JOBS, channel.job())
        take_resources(
            world,
            threads=settings.threads,
            device=job.device,
            affinity=job.affinity,
            freed_memory=job.freed_memory,
        )
        from torch.distributed import PrefixStore, TCPStore

        from backends.base import WHILE_STOPPED_S
        from runners.rank.engine import start_engine

        host, port = split_port(settings.store)
        base = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=FOREVER)
        store = PrefixStore(f"{settings.launch}/{settings.arm}/rendezvous", base)
        timeout = timedelta(seconds=WHILE_STOPPED_S) if job.transport == "nccl" else None
        return start_engine(job, world, store=store, timeout=timeout)

    rank = EngineRank(start=start, log=log)
    serve(agent, rank.handlers)
    rank.engine.backend.teardown()
    # libraries are closed, but Gloo in torch 2.15 may still abort in the interpreter's teardown
    agent.leave(0)


def redirect_output(path: Path) -> None:
    """Redirect all output of this process, also of C++ libraries, to the rank's log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def error_reply(error: Exception) -> dict[str, Any]:
    """The driver's message of the exception being handled."""
    return users_lines.error_reply(
        describe_error(error), cause="bad input" if isinstance(error, PlanError) else "exception"
    )


def describe_error(error: Exception) -> users_lines.Described:
    """Describe the exception being handled: class, message, the user's line, and what to do."""
    if isinstance(error, RingsideError):  # its message has all of these
        first, *more = printable(str(error)).splitlines() or [""]
        return users_lines.Described(f"{type(error).__name__}: {first}", more)
    remedy = next((f"; {remedy}" for text, remedy in REMEDIES.items() if text in str(error)), "")
    message, excerpt = users_lines.describe(error)
    return users_lines.Described(printable(message) + remedy, [printable(line) for line in excerpt])


def serve(agent: Agent, handlers: Mapping[str, Handler]) -> None:
    """Carry out commands until ``finish``.

    An exception is reported to the driver, and ends the rank.
    """
    try:
        agent.serve(handlers)
    except SystemExit as end:
        _end_with(agent, LaunchError(f"the workload called sys.exit({end.code!r})"))
    except Exception as error:  # noqa: BLE001 - the worker's edge: every error is reported to the driver
        _end_with(agent, error)


def _end_with(agent: Agent, error: Exception) -> NoReturn:
    """Log the traceback, report to the driver and end: library teardown without peers may hang or
    hide the error.

    The log comes first: after the report the driver shows the log to the user and ends the arm's
    processes.
    """
    reply = error_reply(error)
    with contextlib.suppress(OSError):  # the disk may be full: the error is reported all the same
        traceback.print_exception(error)
        sys.stderr.flush()
    agent.tell_last(reply)
    if mentions_lost_peer(str(error)):
        time.sleep(CAUSE_FIRST_S)
    agent.leave(1)


@dataclass(kw_only=True, eq=False)
class EngineRank:
    """Handlers of the agent's commands for our ranks, which use an engine."""

    start: Callable[[], Engine]
    """Connects this rank with the others. Collective."""
    log: Path
    """The log of this process."""
    measured: FinishedReply | None = field(default=None, init=False)
    """The last report, if it was made before a gate that followed the blocks."""

    @property
    def handlers(self) -> dict[str, Handler]:
        """By command. They validate the message."""
        return dict.fromkeys(("start", "block", "gate", "epoch", "trace", "finish"), self._handle)

    def _handle(self, message: dict[str, Any]) -> str:
        return self.answer(COMMANDS.validate_python(message)).model_dump_json()

    def answer(self, command: Command) -> Answer:
        """Carry out a command and return the reply. Collective."""
        if isinstance(command, StartCommand):
            return self._start()
        engine = self.engine
        match command:
            case GateCommand():
                self.measured = self._report_finished() if command.after_blocks else None
                return GateReply(report=engine.run_gate(counts_flops=command.counts_flops))
            case BlockCommand():
                return BlockReply(steps=engine.run_block(command))
            case EpochCommand():
                return engine.run_epoch(command)
            case TraceCommand():
                return self._trace(command.steps)
            case FinishCommand():
                reply = self.measured or self._report_finished()
                engine.runner.release()
                return reply

    def _trace(self, steps: int) -> TraceReply:
        from runners.traces import MAX_EVENTS, read_nccl_log, trace_steps

        trainer = self.engine.trainer
        # DDP rebuilds its buckets in its second step
        trainer.run_block(steps=1, warmup_steps=2, local=False)

        reply = trace_steps(
            trainer.step,
            backend=self.engine.backend,
            prepared=trainer.joined,
            device=trainer.device,
            steps=steps,
            max_events=MAX_EVENTS // trainer.world.world_size,
        )
        return reply.model_copy(update={"nccl": read_nccl_log(self.log)})

    def _report_finished(self) -> FinishedReply:
        runner = self.engine.runner
        return FinishedReply(
            report=self.engine.report(),
            peak_memory_bytes=peak_memory_bytes(runner.device),
            drift=runner.drift(),
        )

    def _start(self) -> StartedReply:
        self.engine = self.start()
        return StartedReply(
            report=self.engine.report(), can=self.engine.can, notes=list(self.engine.notes)
        )
