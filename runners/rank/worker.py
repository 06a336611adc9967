"""One rank of an arm under the driver: ``python -m runners.rank.worker JSON`` (``RankArguments``), started N times by a launcher.

It starts its supervisor, which hands messages on, redirects its output to a log and answers commands until ``finish``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal, NoReturn

from measurement.addresses import split_port
from measurement.agent.ringside_agent.channel import Channel, join
from measurement.environment import recorded_environment
from measurement.errors import LaunchError, PlanError
from measurement.probes.start_clock import StartClock
from measurement.registry import search_beside
from measurement.world import World
from runners.launchers import make_launcher
from runners.launchers.rank_variables import read_world
from runners.processes import remote_results
from runners.processes.process_exit import leave
from runners.processes.run_processes import RUN_ID
from runners.protocol.lost_peers import CAUSE_FIRST_S, mentions_lost_peer
from runners.protocol.messages import (
    COMMANDS,
    Answer,
    BlockCommand,
    BlockReply,
    Command,
    EpochCommand,
    ErrorReply,
    FinishCommand,
    FinishedReply,
    GateCommand,
    GateReply,
    Job,
    RankArguments,
    StartCommand,
    StartedReply,
    TraceCommand,
    TraceReply,
)
from runners.rank.remote_error import RemoteError
from runners.rank.resources import take_resources

FOREVER = timedelta(days=30)


def main() -> None:
    """Answer the driver's commands. An exception is reported to the driver and ends the rank."""
    clock = StartClock()
    clock.mark("interpreter")
    gc.disable()  # until the engine stands: importing torch leaves no garbage, and looking for it takes long
    given = RankArguments.model_validate_json(sys.argv[1])
    search_beside(Path(given.beside) if given.beside else Path.cwd())
    os.environ.pop("PYTHONSAFEPATH", None)  # was for this process: programs that the workload starts shall find what lies beside
    world = read_world(os.environ, make_launcher(given.launcher).rank_variables)
    channel = join(given.supervisors, given.key_file, given.arm, given.launch, world.rank, world_size=world.world_size)
    folder = Path(given.log_folder) if given.log_folder else remote_results.make_folder(os.environ[RUN_ID])
    log = folder / remote_results.log_name(world.rank)
    redirect_output(log)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    take_resources(world, threads=given.threads, device=given.device, affinity=given.affinity, freed_memory=given.freed_memory)

    RankServer(
        channel=channel,
        store_address=given.store,
        arm=given.arm,
        launch=given.launch,
        world=world,
        log=log,
        kept_in=None if given.log_folder else folder,
        clock=clock,
    ).serve()
    leave(0)  # torn down in order; Gloo in torch 2.15 may still abort when the interpreter takes the rest apart


def redirect_output(path: Path) -> None:
    """Send everything that this process prints, C++ libraries included, to the rank's log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def error_reply(error: Exception) -> ErrorReply:
    """What the driver hears of an exception that was raised just now."""
    found = RemoteError.of(error)
    cause: Literal["bad input", "exception"] = "bad input" if isinstance(error, PlanError) else "exception"
    return ErrorReply(cause=cause, message=found.message, excerpt=found.excerpt, at_s=time.time())


@dataclass(kw_only=True, eq=False)
class RankServer:
    """Answers the driver's commands, one after another."""

    channel: Channel
    store_address: str
    """Where the ``TCPStore`` listens at which process groups meet."""
    arm: str
    launch: int
    world: World
    log: Path
    """What this process prints."""
    kept_in: Path | None
    """Where replies are kept besides; None: they reach the driver."""
    clock: StartClock
    measured: FinishedReply | None = field(default=None, init=False)
    """What was measured, as the rank told of it before a gate that came after."""

    def serve(self) -> None:
        """Answer commands until ``finish``."""
        done = False
        while not done:
            try:
                command = COMMANDS.validate_json(self.channel.receive())
                text = (reply := self._answer(command)).model_dump_json()
                if isinstance(reply, BlockReply) and self.kept_in and self.channel.outstanding is not None:
                    remote_results.append(self.kept_in, self.world.rank, self.channel.outstanding, text)
                self.channel.reply(text)
            except SystemExit as end:
                self._end_with(LaunchError(f"the process was ended by sys.exit({end.code!r}), which is not ours"))
            except Exception as error:  # noqa: BLE001 - the worker's edge: whatever it was, the driver must hear of it
                self._end_with(error)
            done = isinstance(command, FinishCommand)
        self._engine.backend.teardown()

    def _end_with(self, error: Exception) -> NoReturn:
        """Log the traceback, tell the driver and end: libraries that tear down without their peers may hang, or bury the cause.

        The log comes first: a driver that has been told names it to the user, and ends the arm's processes.
        """
        reply = error_reply(error).model_dump_json()
        with contextlib.suppress(OSError):  # the disk is full: the driver must hear of the error all the same
            traceback.print_exception(error)
            sys.stderr.flush()
        with contextlib.suppress(OSError):  # the way to the driver is cut: the log is what is left
            self.channel.reply(reply)
        if mentions_lost_peer(str(error)):
            time.sleep(CAUSE_FIRST_S)
        leave(1)

    def _answer(self, command: Command) -> Answer:
        """Carry out a command and return the reply."""
        if isinstance(command, StartCommand):
            return self._start()
        engine = self._engine
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
        from runners.traces.rank_trace import MOST_EVENTS, trace_steps

        trainer = self._engine.trainer
        trainer.run_block(steps=1, warmup_steps=2, local=False)  # DDP rebuilds its buckets in its second step
        from runners.traces.nccl_log import read_log

        reply = trace_steps(
            trainer.step,
            backend=self._engine.backend,
            prepared=trainer.joined,
            device=trainer.device,
            steps=steps,
            most_events=MOST_EVENTS // trainer.world.world_size,
        )
        return reply.model_copy(update={"nccl": read_log(self.log)})

    def _report_finished(self) -> FinishedReply:
        engine = self._engine
        report = engine.report(recorded_environment(os.environ))
        return FinishedReply(report=report, peak_memory_bytes=engine.peak_memory_bytes(), drift=engine.drift())

    def _start(self) -> StartedReply:
        from torch.distributed import PrefixStore, TCPStore

        from backends.base import WHILE_STOPPED_S
        from runners.rank.engine import start_engine

        job = Job.model_validate_json(self.channel.job())
        host, port = split_port(self.store_address)
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=FOREVER)
        rendezvous = PrefixStore(f"{self.launch}/{self.arm}/rendezvous", store)
        self.clock.mark("imports")
        timeout = timedelta(seconds=WHILE_STOPPED_S) if job.transport == "nccl" else None
        self._engine = start_engine(job, self.world, store=rendezvous, timeout=timeout, clock=self.clock)
        report = self._engine.report(recorded_environment(os.environ))
        self.clock.mark("model")
        return StartedReply(report=report, notes=list(self._engine.notes), start_s=self.clock.stages_s)


if __name__ == "__main__":
    main()
