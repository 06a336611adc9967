"""One rank of a standalone run: it takes the gate, then measures throughput or trains to the end. Rank 0 writes and prints."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from measurement.agent.ringside_agent.place import World
from measurement.agent.ringside_agent.reporting import leave
from measurement.environment import recorded_environment
from measurement.errors import ParityError, RingsideError
from measurement.plans.plan import Plan
from measurement.records.record import LaunchRecord, RankReport
from measurement.records.results import ResultsFolder
from runners.planning.arms import job_of
from runners.planning.standalone_flags import RunOptions
from runners.processes.process_exit import say_once
from runners.protocol.gate_verdict import judge_gate
from runners.protocol.lost_peers import CAUSE_FIRST_S, mentions_lost_peer
from runners.protocol.messages import CheckReport, ParityReport
from runners.rank.engine import Engine, start_engine
from runners.rank.remote_error import report_error
from runners.standalone.joint_start import joint_start
from runners.standalone.partial_results import write_partial_record
from runners.standalone.rendezvous import rendezvous_store
from runners.standalone.throughput import measure
from runners.standalone.training_run import train

if TYPE_CHECKING:
    from backends.base import Store
    from runners.event_log import TensorboardLog


@dataclass(kw_only=True)
class StandaloneRun:
    """What one rank has to do. Its methods are collective."""

    plan: Plan
    """Its single arm are the ranks."""
    world: World
    """As the launcher has it; once the engine stands, as the library has it."""
    options: RunOptions
    folder: ResultsFolder
    store: Store | None = field(default=None, init=False)
    """Where the ranks met. Rank 0 may serve it, so it lasts as long as the run: others may still be starting."""

    def run(self) -> None:
        """Run from start to end.

        An exception that is no ``RingsideError`` ends this process at once, without the other ranks, who may wait elsewhere.

        Raises:
            ParityError: on every rank, when gradients, or the results of operations, are wrong.
        """
        try:
            self._run()
        except RingsideError:
            raise
        except Exception as error:  # noqa: BLE001 - the edge of a rank that has no driver to tell
            self._say_why(error)
            leave(1)

    def _run(self) -> None:
        began = time.monotonic()
        engine = self._start()
        record: LaunchRecord | None = None
        self.world = engine.runner.world
        try:
            events = self._open_events(engine)
            record = self._new_record(engine)
            self._take_gate(engine, record, before=True)
            record.start_s = time.monotonic() - began
            if engine.job.training:
                train(engine, record, say=self._say, events=events)
            else:
                measure(engine, record, self.plan.measurement)
            self._finish(engine, record, events)
            engine.runner.release()
            engine.backend.barrier()
        except RingsideError as error:
            self._say_why(error)
            engine.backend.teardown()
            raise
        except BaseException as error:
            if record is not None:
                write_partial_record(self.folder, self.plan, record, error, rank=self.world.rank)
            raise
        engine.backend.teardown()

    def _start(self) -> Engine:
        """Meet the other ranks and build the engine. Before a training the workload is tried."""
        arm, timeout = self.plan.arms[self.plan.baseline], timedelta(seconds=self.options.timeout)
        job = job_of(self.plan, self.plan.baseline, arm, transport=arm.transport)
        job = job.model_copy(update={"tries": job.training.epochs if job.training else None})
        if self.world.rank == 0:
            self.folder.prepare_to_write()
        self.store = rendezvous_store(job, self.world, timeout=timeout)
        with joint_start(self.store, self.world, say=self._say_why):
            engine = start_engine(job, self.world, store=self.store, timeout=timeout)
        for note in engine.notes:
            self._say(f"note: {note}")
        return engine

    def _open_events(self, engine: Engine) -> TensorboardLog | None:
        if self.options.tensorboard is None or self.world.rank != 0:
            return None
        from runners.event_log import TensorboardLog  # with scipy, which no other rank needs

        return TensorboardLog(self.options.tensorboard, sample_unit=engine.sample_unit)

    def _new_record(self, engine: Engine) -> LaunchRecord:
        """Return the record that is to be filled."""
        record = engine.job.new_record(
            self.plan,
            comparison_id=self.folder.root.name,
            launch=0,
            transport=str(engine.backend.describe().get("transport")),
            launcher=engine.world.launcher,
            sample_unit=engine.sample_unit,
            cases=list(engine.cases.values()),
            commands=[{"host": socket.gethostname(), "argv": sys.orig_argv}],
        )
        record.ranks = engine.backend.all_gather_object(engine.report(recorded_environment(os.environ)), RankReport)
        record.hosts = sorted({report.host for report in record.ranks})
        return record

    def _take_gate(self, engine: Engine, record: LaunchRecord, *, before: bool) -> None:
        """Take the parity gate where it is due: before a training or a micro-benchmark, or after blocks.

        As under a driver, see ``runners.driver.gates``. A micro-benchmark's gate also tells what the backend offers.

        Raises:
            ParityError: on every rank, where it is not passed.
        """
        if before != engine.gate_comes_first:
            return
        reports = engine.backend.all_gather_object(engine.run_gate(counts_flops=True), ParityReport | CheckReport)
        record.flops = reports[0].flops if isinstance(reports[0], ParityReport) else None
        record.parity, record.not_offered = judge_gate(reports)
        if not record.parity.passed:
            failures = "; ".join(record.parity.failures)
            raise ParityError(f"backend '{record.backend}' computes wrongly, so that no timing of it counts: {failures}")

    def _finish(self, engine: Engine, record: LaunchRecord, events: TensorboardLog | None) -> None:
        """Gather what ranks report in the end. Rank 0 writes the record before it prints anything."""
        own = (engine.report(recorded_environment(os.environ)), engine.peak_memory_bytes())
        self._take_gate(engine, record, before=False)
        reports = engine.backend.all_gather_object(own, tuple[RankReport, int])
        record.ranks = [report for report, _ in reports]
        record.peak_memory_bytes = [peak for _, peak in reports]
        record.hosts = sorted({report.host for report in record.ranks})
        if self.world.rank == 0:
            self.folder.write_plan(self.plan)
            self.folder.write_launch(record)
            self._show(record)
        if events is not None:
            if not record.epochs and not record.cases:
                events.rounds(record.blocks)
            events.close()

    def _show(self, record: LaunchRecord) -> None:
        """Print the table, and where the record is."""
        from measurement.records.step_tables import steps_of
        from reports.formats.console import new_console
        from runners.standalone.tables import cases_table, throughput_table

        console = new_console(plain=record.world_size > 1)  # mpirun gives ranks a terminal, whatever its own output is
        if not record.epochs:
            steps = steps_of(record.blocks)
            console.print(cases_table(record, steps) if record.cases else throughput_table(record, steps))
        where = self.folder.launch_folder(record.launch, record.arm) / "record.json"
        console.print(f"record: {where}", markup=False, highlight=False, soft_wrap=True)

    def _say(self, text: str) -> None:
        """Print on rank 0, unbuffered although the output goes to a launcher."""
        if self.world.rank == 0:
            print(text, flush=True)

    def _say_why(self, error: Exception) -> None:
        """Print why this rank ends, once, and before it ends what keeps others from noticing."""
        if getattr(error, "is_said", False):
            return
        if mentions_lost_peer(str(error)):
            time.sleep(CAUSE_FIRST_S)
        if isinstance(error, RingsideError):
            say_once(error)
            return
        who = f"rank {self.world.rank} on {socket.gethostname()}" if self.world.world_size > 1 else "the rank"
        report_error(error, who=who, folder=self.folder.root, name=f"rank-{self.world.rank}-traceback.txt")
        error.is_said = True  # type: ignore[attr-defined]
