"""Processes this driver started, and nothing but those: start in a session of their own, end all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from runners.launchers import HostCommand
from runners.marked import MARK
from runners.planning import search_path
from runners.rank_environment import without_rank_variables

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
