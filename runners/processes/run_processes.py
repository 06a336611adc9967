"""Finds and ends the processes of a run on this host, by a variable that all of them inherit."""

from __future__ import annotations

import contextlib
import os
import time

import psutil

from runners.processes.open_mpi_files import remove_open_mpi_files

RUN_ID = "RINGSIDE_RUN"
"""The variable that every process of a run inherits."""


def end_run(run_id: str, *, wait_s: float = 2.0) -> list[int]:
    """Kill the processes of a run that are left on this host, frozen or orphaned ones included. Returns their pids."""
    left = run_processes_left(run_id)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + wait_s
    while any(_is_alive(process) for process in left) and time.monotonic() < deadline:
        time.sleep(0.01)
    pids = [process.pid for process in left]
    remove_open_mpi_files(pids)
    return pids


def run_processes_left(run_id: str) -> list[psutil.Process]:
    """Return this user's processes with a run id, without the calling one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(RUN_ID) == run_id and _is_alive(process):
                found.append(process)
    return found


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
