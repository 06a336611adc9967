"""What a standalone run has measured when it fails or is interrupted: each rank keeps its blocks as they end.

A rank that still can makes a record of the blocks that all ranks have kept; a rank that was killed could not hand its own on.
"""

from __future__ import annotations

import contextlib
import signal
import socket

from measurement.errors import RecordError
from measurement.plans.plan import Plan
from measurement.records.record import BlockRecord, Failure, LaunchRecord, ranks_of
from measurement.records.results import ResultsFolder
from runners.processes.process_exit import interrupted_code
from runners.processes.remote_results import append, kept_replies, timings_name
from runners.rank.remote_error import RemoteError

MEANWHILE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


class PartialResults:
    """One rank's blocks in the folder of its run. Nothing is collective."""

    def __init__(self, folder: ResultsFolder, plan: Plan, *, rank: int) -> None:
        self._results, self._plan, self._rank = folder, plan, rank
        self._folder = folder.launch_folder(0, plan.baseline)

    def add(self, block: BlockRecord) -> None:
        """Keep a block that this rank has measured, outside timed steps."""
        with contextlib.suppress(OSError):  # a full disk is told when the record is written
            self._folder.mkdir(parents=True, exist_ok=True)
            append(self._folder, self._rank, block.block, block.model_dump_json())

    def remove(self) -> None:
        """Forget this rank's blocks: the run's record has them, or they are worth nothing."""
        (self._folder / timings_name(self._rank)).unlink(missing_ok=True)
        for folder in (self._folder, self._folder.parent):
            with contextlib.suppress(OSError):  # there is a record, or another rank's blocks
                folder.rmdir()

    def write_record(self, record: LaunchRecord | None, error: BaseException) -> None:
        """Write what was measured and why there is no more, unless another rank has done so or there is nothing.

        Signals are ignored meanwhile: a launcher ends the ranks whose peer has failed, within milliseconds, and their loaders'
        processes, for which torch raises at SIGCHLD.
        """
        handlers = {ending: signal.signal(ending, _ignore) for ending in MEANWHILE}
        try:
            with contextlib.suppress(RecordError):  # what ended the run is what its user has to know
                self._write(record, error)
        finally:
            for ending, handler in handlers.items():
                signal.signal(ending, handler)

    def _write(self, record: LaunchRecord | None, error: BaseException) -> None:
        if record is None or (self._folder / "record.json").exists():
            return
        record.blocks = record.blocks or self._joined(record.world_size)
        if not record.blocks:
            return
        record.complete = False
        why = ""
        if isinstance(error, Exception):
            why = RemoteError.of(error).message
        elif interrupted_code() == 128 + signal.SIGTERM:
            why = "ended by SIGTERM, as launchers do when a peer has failed"
        if why:
            message = f"rank {self._rank}: {why}"
            record.status = "failed"
            record.error = Failure(message=message, ranks=[self._rank], hosts=[socket.gethostname()])
        self._results.write_plan(self._plan)
        self._results.write_launch(record)

    def _joined(self, world_size: int) -> list[BlockRecord]:
        """The blocks that every rank has kept, joined."""
        names = [timings_name(rank) for rank in range(world_size)]
        files = {name: path.read_bytes() for name in names if (path := self._folder / name).exists()}
        found: list[BlockRecord] = []
        while replies := kept_replies(files, number=len(found), world_size=world_size):
            blocks = [BlockRecord.model_validate_json(reply) for reply in replies]
            found.append(BlockRecord.joined(blocks[0], ranks_of(blocks)))
        return found


def _ignore(_number: int, _frame: object) -> None:
    """Unlike SIG_IGN it leaves ended children to who waits for them."""
