"""The processes of a run on this host: launchers are started in sessions of their own and ended,
programs are found, and whatever a run has left is found by a variable that all of it inherits.

``python -m runners.processes.local COMMAND ARGUMENTS`` is the far end of a launcher started over
ssh.

Killing ssh does not end the process on the other host, and a killed launcher may leave its ranks
behind. So the driver holds this process's standard input open: when it closes for any reason, all
processes of the run on this host are killed.

Also removes a run's containers that were created and never started, and what killed launchers of
Open MPI leave on this host: their session folder and ranks' shared memory. ``mpirun`` and its
daemons (Open MPI 4.1 and 5.0) remove both unless they end by SIGKILL. Shared memory that no process
has mapped is a killed job's.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from measurement.agent.ringside_agent.supervision.rank_supervisor import open_pidfd
from measurement.environment import local_environment
from runners.launchers import HostCommand, without_rank_variables
from runners.launchers.base import CONTAINER_FILE, RUN_ID

TERM_GRACE_S = 3.0
END_S = 2.0
REMOVE_S = 30.0
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


def end_run(run_id: str) -> list[int]:
    """Kill the processes of a run on this host, including frozen and orphaned ones.

    Returns their pids.
    """
    left = run_processes_left(run_id)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + END_S
    while any(_is_alive(process) for process in left) and time.monotonic() < deadline:
        time.sleep(0.01)
    pids = [process.pid for process in left]
    remove_open_mpi_files(pids)
    remove_containers(run_id)
    return pids


def run_processes_left(run_id: str) -> list[psutil.Process]:
    """Return this user's processes of a run, or of all starts of a comparison, without the calling
    process.
    """
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_ours = _is_of(run_id, process.environ().get(RUN_ID, ""))
            if process.pid != os.getpid() and is_ours and _is_alive(process):
                processes.append(process)
    return processes


def _is_of(run_id: str, its_run_id: str) -> bool:
    """Whether a run has this ID, or is of a comparison that has it."""
    return run_id in (its_run_id, its_run_id.partition("-")[0])


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def remove_left_folders(root: Path, start: str) -> None:
    """Remove this user's folders ``START-HOST-PID-...`` of processes on this host that were
    killed.
    """
    start = f"{start}{socket.gethostname()}-"
    for folder in root.glob(f"{start}*"):
        pid = folder.name.removeprefix(start).partition("-")[0]
        with contextlib.suppress(OSError):
            if (
                folder.lstat().st_uid == os.getuid()
                and pid.isdecimal()
                and not psutil.pid_exists(int(pid))
            ):
                shutil.rmtree(folder, ignore_errors=True)


def remove_containers(run_id: str) -> None:
    """Remove a run's containers on this host. Their program removes them as they end, unless it was
    ended before it had started them.
    """
    pattern = Path(CONTAINER_FILE.format(run="*", number="*", program="*"))
    prefix = pattern.name.partition("*")[0]
    for file in pattern.parent.glob(pattern.name):
        its_run_id, _, program = file.name.removeprefix(prefix).rsplit(".", 2)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if _is_of(run_id, its_run_id) and file.stat().st_uid == os.getuid():
                if container := file.read_text(encoding="ascii"):
                    argv = [program, "rm", "--force", container]
                    subprocess.run(argv, capture_output=True, timeout=REMOVE_S, check=False)
                file.unlink()


SHARED_MEMORY = Path("/dev/shm")


def remove_open_mpi_files(pids: Iterable[int]) -> None:
    """Remove the session folders of these ended launchers of Open MPI, and the shared memory of
    their ranks. Other processes are skipped.
    """
    host, temporary = socket.gethostname().partition(".")[0], Path(tempfile.gettempdir())
    uid = os.getuid()
    for pid in pids:
        for session, segments in (
            (temporary / f"ompi.{host}.{uid}" / f"pid.{pid}", f"vader_segment.{host}.{uid}.*"),
            (temporary / f"ompi.{pid}", f"sm_segment.{host}.{uid}.*"),
        ):
            # files that cannot be read are not ours; those that cannot be removed are in use
            with contextlib.suppress(OSError):
                if session.is_dir():
                    mapped = _mapped_files()
                    for segment in SHARED_MEMORY.glob(segments):
                        if str(segment) not in mapped:
                            segment.unlink(missing_ok=True)
                    shutil.rmtree(session, ignore_errors=True)
                    if session.parent.name.startswith("ompi."):
                        session.parent.rmdir()  # unless others run


def _mapped_files() -> str:
    """The kernel's lists of the files that this user's processes have mapped."""
    maps = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            maps.append(
                Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")
            )
    return "".join(maps)


def main(argv: Sequence[str]) -> int:
    """Run the command until it or the driver ends, then end the run here.

    Returns its exit code as a shell does.
    """
    signal.signal(signal.SIGTERM, lambda *_: os.close(sys.stdin.fileno()))
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        wait(process)
    finally:
        end_run(os.environ[RUN_ID])
    code = process.wait()
    return code if code >= 0 else 128 - code


def wait(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has ended or standard input, over which nothing is sent, is closed."""
    ended = open_pidfd(process.pid)
    while process.poll() is None:
        try:
            listening = [sys.stdin.fileno(), *([] if ended is None else [ended])]
            ready, _, _ = select.select(listening, [], [], 0.5 if ended is None else None)
            if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 1):
                return
        except OSError:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
