"""What a standalone run has measured when it fails or is interrupted: a rank that still can writes the record."""

from __future__ import annotations

import contextlib
import signal
import socket

from measurement.errors import RecordError
from measurement.plans.plan import Plan
from measurement.records.record import Failure, LaunchRecord
from measurement.records.results import ResultsFolder
from runners.processes.process_exit import interrupted_code
from runners.rank.remote_error import describe_error

MEANWHILE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


def write_partial_record(folder: ResultsFolder, plan: Plan, record: LaunchRecord, error: BaseException, *, rank: int) -> None:
    """Write the blocks that all ranks have ended and why there are no more, unless another rank has, or there are none.

    Signals are ignored meanwhile: a launcher ends the ranks whose peer has failed, within milliseconds, and their loaders'
    processes, for which torch raises at SIGCHLD.
    """
    handlers = {ending: signal.signal(ending, _ignore) for ending in MEANWHILE}
    try:
        with contextlib.suppress(RecordError):  # what ended the run is what its user has to know
            if record.blocks and not (folder.launch_folder(record.launch, record.arm) / "record.json").exists():
                _mark(record, error, rank=rank)
                folder.write_plan(plan)
                folder.write_launch(record)
    finally:
        for ending, handler in handlers.items():
            signal.signal(ending, handler)


def _mark(record: LaunchRecord, error: BaseException, *, rank: int) -> None:
    """Say in the record that it is not whole, and why."""
    record.complete = False
    why = ""
    if isinstance(error, Exception):
        why = describe_error(error).message
    elif interrupted_code() == 128 + signal.SIGTERM:
        why = "ended by SIGTERM, as launchers do when a peer has failed"
    if why:
        record.status = "failed"
        record.error = Failure(message=f"rank {rank}: {why}", ranks=[rank], hosts=[socket.gethostname()])


def _ignore(_number: int, _frame: object) -> None:
    """Unlike SIG_IGN it leaves ended children to who waits for them."""
