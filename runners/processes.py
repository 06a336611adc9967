"""Processes this driver started, and nothing but those: start in a session of their own, end all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from runners.launchers import HostCommand
from runners.planning import search_path
from runners.rank_environment import without_rank_variables

MARK = "RINGSIDE_RUN"
"""An environment variable that every process of a run inherits, by which the last ones are found."""
TERM_GRACE_S = 3.0


def start(command: HostCommand, *, mark: str, log: Path) -> subprocess.Popen[bytes]:
    """Start one launcher in a session of its own; its output goes to ``log``.

    Raises:
        OSError: it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command.argv,
            env=base_environment() | dict(command.environment) | {MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def base_environment() -> dict[str, str]:
    """The driver's environment without any job's rank variables, with its own Python first on PATH."""
    return without_rank_variables(os.environ) | {"PATH": search_path(), "PYTHONUNBUFFERED": "1"}


def end(process: subprocess.Popen[bytes], *, grace_s: float = TERM_GRACE_S) -> None:
    """SIGTERM to the launcher's process group, SIGKILL when that has not ended it in time."""
    for sent, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)


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
    """The processes of this user that carry a run's mark, the driver itself excepted."""
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
