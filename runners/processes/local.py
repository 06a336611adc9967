"""Starts launchers on this host, each in a session of its own, and ends them; finds programs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from measurement.environment import local_environment
from runners.launchers import HostCommand, without_rank_variables
from runners.launchers.base import RUN_ID

TERM_GRACE_S = 3.0
OUR_PYTHON = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONIOENCODING": "utf-8:backslashreplace",
    "PYTHONSAFEPATH": "1",
}
"""The output of our Pythons is read as UTF-8 in any locale; file names may have bytes that are not
UTF-8. Their path does not begin with the current folder, which may have a ``runners.py``: the
worker adds it after it has imported ours."""


def start(command: HostCommand, *, run_id: str, log: Path) -> subprocess.Popen[bytes]:
    """Start one launcher in a session of its own; its output goes to ``log``.

    Raises:
        OSError: it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command.argv,
            env=(base_environment() if command.inherited is None else dict(command.inherited))
            | dict(command.environment)
            | {RUN_ID: run_id}
            | ({"PWD": str(command.folder)} if command.folder else {}),
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def find_program(name: str) -> str | None:
    """Find a program beside this interpreter, whose environment may not be activated, on PATH, or
    in sbin.
    """
    places = (
        str(Path(sys.executable).parent),
        os.environ.get("PATH", os.defpath),
        "/usr/sbin:/sbin",
    )
    return next((path for place in places if (path := shutil.which(name, path=place))), None)


def search_path() -> str:
    """Return PATH with the folder of this Python first, so that its environment need not be
    activated.
    """
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def base_environment() -> dict[str, str]:
    """Return the driver's environment as processes inherit it: without rank variables, with its
    Python first on PATH.
    """
    return (
        local_environment(without_rank_variables(os.environ)) | {"PATH": search_path()} | OUR_PYTHON
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the launcher's process group, and SIGKILL if it does not end in time."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERM_GRACE_S)
