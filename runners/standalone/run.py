"""One rank of a standalone run: it starts with the others, then carries out commands of rank 0,
which acts as the driver.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measurement.agent.ringside_agent.agent import obey
from measurement.agent.ringside_agent.place import World
from measurement.agent.ringside_agent.reporting import leave
from measurement.errors import ParityError, RingsideError
from measurement.plans.plan import Plan
from measurement.records.results import ResultsFolder
from runners.planning.arms import job_of
from runners.planning.standalone_flags import RunOptions
from runners.processes.process_exit import say_once
from runners.protocol import CAUSE_FIRST_S, mentions_lost_peer
from runners.rank.engine import Engine, start_engine
from runners.rank.worker import EngineRank, describe_error
from runners.standalone.rendezvous import joint_start, rendezvous_store

if TYPE_CHECKING:
    from backends.base import Backend, Store

NOTHING = b" "
"""A broadcast has at least one byte."""


@dataclass(kw_only=True)
class StandaloneRun:
    """The run on one rank. Its methods are collective."""

    plan: Plan
    """These ranks are its single arm."""
    world: World
    """As the launcher says."""
    options: RunOptions
    folder: ResultsFolder
    store: Store | None = field(default=None, init=False)
    """The store of the rendezvous. Rank 0 may serve it, so it lasts as long as the run: others may
    still be starting."""

    def run(self) -> None:
        """Run from start to end.

        An exception that is no ``RingsideError`` ends this process at once, without the other
        ranks, which may wait elsewhere.

        Raises:
            ParityError: on every rank, when gradients, or the results of operations, are wrong.
        """
        try:
            self._run()
        except RingsideError:
            raise
        except Exception as error:  # noqa: BLE001 - the edge of a rank without a driver
            self._say_why(error)
            leave(1)

    def _run(self) -> None:
        began = time.monotonic()
        # imported before the engine is built: later, garbage collection in steps would scan it
        if self.world.rank == 0:
            importlib.import_module("runners.standalone.leading_rank")
            if self.options.tensorboard is not None:
                importlib.import_module("tensorboard.summary.writer.event_file_writer")
        engine = self._start()
        rank = EngineRank(start=lambda: engine, log=Path(os.devnull))
        try:
            if engine.runner.world.rank == 0:
                self._lead(engine, rank, began=began)
            else:
                _follow(rank, engine.backend)
        except RingsideError as error:
            self._say_why(error)
            engine.backend.teardown()
            raise
        engine.backend.teardown()

    def _start(self) -> Engine:
        """Connect to the other ranks and build the engine. Before a training the workload is
        tried.
        """
        arm, timeout = self.plan.arms[self.plan.baseline], timedelta(seconds=self.options.timeout)
        job = job_of(self.plan, self.plan.baseline, arm, transport=arm.transport)
        job = job.model_copy(update={"tries": job.training.epochs if job.training else None})
        self.store = rendezvous_store(job, self.world, timeout=timeout)
        with joint_start(self.store, self.world, say=self._say_why):
            engine = start_engine(job, self.world, store=self.store, timeout=timeout)
        if self.world.rank == 0:
            for note in engine.notes:
                # the output goes to a launcher, which may not be a terminal
                print(f"note: {note}", flush=True)
        return engine

    def _lead(self, engine: Engine, rank: EngineRank, *, began: float) -> None:
        from runners.standalone.leading_rank import CollectiveSession, lead

        where: dict[str, Any] = {"backend": engine.backend, "folder": self.folder.root}
        session = CollectiveSession(self.plan.baseline, rank=rank, started_s=began, **where)
        try:
            lead(
                session,
                engine,
                plan=self.plan,
                folder=self.folder,
                tensorboard=self.options.tensorboard,
            )
        except RingsideError as error:
            self._say_why(error)
            session.part(error)
            raise
        session.part()

    def _say_why(self, error: Exception) -> None:
        """Print once why this rank ends.

        A rank that lost a peer waits, so that the cause is printed first.
        """
        if getattr(error, "was_reported", False):
            return
        if mentions_lost_peer(str(error)):
            time.sleep(CAUSE_FIRST_S)
        if isinstance(error, RingsideError):
            say_once(error)
            return
        who = (
            f"rank {self.world.rank} on {socket.gethostname()}"
            if self.world.world_size > 1
            else "the rank"
        )
        described = describe_error(error)
        path = self.folder.root / f"rank-{self.world.rank}-traceback.txt"
        text = "".join(traceback.format_exception(error))
        where = f"full traceback: {path}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError:
            where = text
        lines = [f"ringside: {who}: {described.message}", *described.excerpt, where]
        print("\n".join(lines), file=sys.stderr)
        error.was_reported = True  # type: ignore[attr-defined]


def _follow(rank: EngineRank, backend: Backend) -> None:
    """Carry out rank 0's commands, which come over the backend's collectives, and wait until it has
    written the record.

    Raises:
        ParityError: the error with which rank 0 ends.
    """
    obey(
        rank.handlers,
        lambda: backend.broadcast_bytes(NOTHING),
        lambda reply: backend.all_gather_bytes(reply.encode()),
    )
    if error := backend.broadcast_bytes(NOTHING).strip():
        raise ParityError(error.decode())
