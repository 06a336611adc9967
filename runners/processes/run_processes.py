"""Processes of one run, known by a variable that all of them inherit: found and ended, on whichever host this is called."""

from __future__ import annotations

import contextlib
import os
import time

import psutil

MARK = "RINGSIDE_RUN"
"""An environment variable that every process of a run inherits, by which the last ones are found."""


def end_marked(mark: str, *, wait_s: float = 2.0) -> list[int]:
    """Kill whatever of a run is left on this host: frozen, orphaned or in a session of its own. Returns the pids."""
    left = marked(mark)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + wait_s
    while any(_is_alive(process) for process in left) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [process.pid for process in left]


def marked(mark: str) -> list[psutil.Process]:
    """The processes of this user that carry a run's mark, the calling one excepted."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark and _is_alive(process):
                found.append(process)
    return found


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
