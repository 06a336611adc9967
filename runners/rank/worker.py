"""One rank of an arm under the driver: ``python -m runners.worker``, started N times by a launcher.

It starts its warden, sends its output to the log, meets the driver's store and does what it is told until told to finish.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from measurement.fingerprint import allowed_environment, usable_cores
from measurement.world import World
from runners import spool, warden
from runners.job import (
    CheckReport,
    Command,
    Job,
    Reply,
    command_key,
    decode_command,
    encode,
    job_key,
    reply_key,
)
from runners.leaving import leave
from runners.marked import MARK
from runners.rank_environment import read_world

FOREVER = timedelta(days=30)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the driver; an exception is reported there and ends the rank."""
    gc.disable()  # until the engine stands: importing torch leaves no garbage, and looking for it takes long
    given = _arguments().parse_args(argv)
    world = read_world(os.environ)
    warden.start(given.wardens, given.token, given.arm, given.launch, world.rank)
    folder = Path(given.log_folder) if given.log_folder else spool.folder_of(os.environ[MARK])
    redirect_output(folder / spool.log_name(world.rank))
    faulthandler.register(signal.SIGUSR1)
    if given.affinity == "spread":
        pin(world)
    sys.path.insert(0, str(Path.cwd()))

    import torch  # after the affinity, so that its threads are made with it
    from torch.distributed import TCPStore

    host, _, port = given.driver.rpartition(":")
    store = TCPStore(host.strip("[]"), int(port), is_master=False, wait_for_workers=False, timeout=FOREVER)
    torch.set_num_threads(given.threads)
    Servant(store=store, arm=given.arm, launch=given.launch, world=world, kept_in=None if given.log_folder else folder).serve()
    leave(0)  # torn down in order; Gloo in torch 2.15 may still abort when the interpreter takes the rest apart


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runners.worker", description=__doc__)
    parser.add_argument("--driver", required=True, help="host:port of the driver's store")
    parser.add_argument("--wardens", required=True, help="host:port of the driver's warden server")
    parser.add_argument("--token", required=True)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--launch", type=int, required=True)
    parser.add_argument("--log-folder", help="default: this host's own (runners.spool), where timings are kept too")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--affinity", choices=("none", "spread"), default="spread")
    return parser


def redirect_output(path: Path) -> None:
    """Everything this process prints, C++ included, goes to the rank's log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def pin(world: World) -> None:
    """Leave this rank its equal share of the cores; all of them where there are fewer cores than ranks."""
    cores = usable_cores()
    share = len(cores) // world.local_world_size
    if share:
        os.sched_setaffinity(0, cores[world.local_rank * share : (world.local_rank + 1) * share])


def end_with(error: Exception) -> NoReturn:
    """Log where it happened and end at once: libraries that tear down after their peers have gone hang, or bury the cause."""
    traceback.print_exception(error)
    leave(1)


class Servant:
    """Answers the driver's commands, one after another."""

    def __init__(self, *, store: Any, arm: str, launch: int, world: World, kept_in: Path | None) -> None:
        self._store = store
        self._kept_in = kept_in
        self._arm, self._launch = arm, launch
        self._world = world
        self._job = Job.model_validate_json(store.get(job_key(arm, launch)))
        self._answers: dict[str, Callable[[Command], Reply]] = {
            "start": self._start,
            "parity": self._parity,
            "block": self._block,
            "epoch": self._epoch,
            "finish": self._finish,
        }

    def serve(self) -> None:
        """Until ``finish`` has been answered."""
        number, done = 0, False
        while not done:
            command = decode_command(self._store.get(command_key(self._arm, self._launch, number)))
            place = reply_key(self._arm, self._launch, number, self._world.rank)
            try:
                reply = self._answers[command.do](command)
            except Exception as error:  # noqa: BLE001 - the worker's edge: whatever it was, the driver must hear of it
                self._store.set(place, encode(Reply(error=f"{type(error).__name__}: {error}", error_at_s=time.time())))
                end_with(error)
            if reply.block and self._kept_in:
                spool.append(self._kept_in, self._world.rank, number, encode(reply.block))
            self._store.set(place, encode(reply))
            number, done = number + 1, command.do == "finish"
        self._engine.backend.teardown()

    def _start(self, command: Command) -> Reply:
        from torch.distributed import PrefixStore

        from runners.engine import start_engine

        meeting = PrefixStore(f"{self._launch}/{self._arm}/meeting", self._store)
        self._engine = start_engine(self._job, self._world, store=meeting)
        return Reply(report=self._engine.report(allowed_environment(os.environ)))

    def _parity(self, command: Command) -> Reply:
        found = self._engine.run_gate(steps=command.steps)
        return Reply(check=found) if isinstance(found, CheckReport) else Reply(parity=found)

    def _block(self, command: Command) -> Reply:
        return Reply(block=self._engine.run_block(command))

    def _epoch(self, command: Command) -> Reply:
        return Reply(epoch=self._engine.run_epoch(command.epoch))

    def _finish(self, command: Command) -> Reply:
        engine = self._engine
        reply = Reply(
            report=engine.report(allowed_environment(os.environ)),
            peak_memory_bytes=engine.peak_memory_bytes(),
        )
        engine.runner.release()
        return reply


if __name__ == "__main__":
    main()
