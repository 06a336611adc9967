"""A process that has imported what ranks import: tests fork modules of it that would take seconds
to import that themselves.

There is one for each process of pytest's, started where it is first needed. A fork has the
environment, the folder, the streams and the cores of whoever asks for it (``start_warm``), and a
session of its own. Its environment is seen in /proc, where runs are found.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from measurement.agent.ringside_agent.reporting import leave
from runners import spawn
from runners.processes.process_exit import exit_code_of
from tests.kit.start_warm import place

CLIENT = str(Path(__file__).with_name("start_warm.py"))
ROOM = "TESTS_ROOM_FOR_AN_ENVIRONMENT"
"""Of the server's own, where its forks write theirs."""
GRACE_S = 3.0


WARM = "TESTS_WARM_SERVER"
"""The variable by which a driver that a test started finds the server's socket, if one runs."""


def warm_command(path, *arguments):
    """What runs ``python ARGUMENTS`` in a fork of the server with this socket."""
    return (sys.executable, "-I", "-S", CLIENT, path, *arguments)


@functools.cache
def socket_path():
    """Start this process's server; it ends with it."""
    from tests.conftest import REPOSITORY, STARTED_BY

    folder = tempfile.mkdtemp(prefix="tests-warm-", dir="/tmp")
    path = f"{folder}/socket"
    environment = {name: value for name, value in os.environ.items() if name != STARTED_BY} | {
        ROOM: "x" * 65536
    }
    command = [sys.executable, "-m", "tests.kit.warm_server", path]
    server = subprocess.Popen(
        command, env=environment, cwd=REPOSITORY, stdin=subprocess.PIPE, start_new_session=True
    )
    atexit.register(_end, server, folder)
    os.environ[WARM] = path  # for drivers that are processes of their own
    deadline = time.monotonic() + 120
    while not Path(path).exists():
        assert server.poll() is None and time.monotonic() < deadline, (
            "the warm server does not start"
        )
        time.sleep(0.05)
    return path


def _end(server, folder):
    server.stdin.close()  # upon which it ends its forks, and itself
    server.wait()
    shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Fork:
    """One that runs."""

    pid: int
    connection: socket.socket
    ended: int
    """A descriptor that can be read when it has."""
    kill_at: float | None = None


class Server:
    """Forks, and tells who asked how each of them ended. Never starts a thread."""

    def __init__(self, path, own_place):
        self._waiting = selectors.DefaultSelector()
        self._forks: dict[int, Fork] = {}
        self._place = own_place
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"{path}.new")
        self._listening.listen(64)
        Path(f"{path}.new").rename(path)
        self._waiting.register(self._listening, selectors.EVENT_READ, self._accept)
        self._waiting.register(sys.stdin, selectors.EVENT_READ, self._end_all)

    def serve(self):
        """Until pytest's process has ended."""
        while True:
            for key, _ in self._waiting.select(
                timeout=0.5 if any(fork.kill_at for fork in self._forks.values()) else None
            ):
                key.data()
            for fork in list(self._forks.values()):
                if fork.kill_at is not None and time.monotonic() > fork.kill_at:
                    self._signal(fork, signal.SIGKILL)

    def _accept(self):
        connection, _ = self._listening.accept()
        with contextlib.suppress(OSError, ValueError):
            _, streams, _, _ = socket.recv_fds(connection, 1, 3)
            asked = json.loads(connection.makefile().readline())
            if asked["place"] == self._place and len(streams) == 3:
                self._fork(connection, streams, asked)
            else:
                connection.sendall(b"elsewhere\n")
                connection.close()
            for stream in streams:
                os.close(stream)

    def _fork(self, connection, streams, asked):
        pid = os.fork()
        if pid == 0:
            become(streams, asked)
        fork = Fork(pid=pid, connection=connection, ended=os.pidfd_open(pid))
        self._forks[pid] = fork
        self._waiting.register(fork.ended, selectors.EVENT_READ, lambda: self._tell(fork))
        self._waiting.register(connection, selectors.EVENT_READ, lambda: self._hang_up(fork))

    def _tell(self, fork):
        _, status = os.waitpid(fork.pid, 0)
        with contextlib.suppress(OSError):
            fork.connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        self._waiting.unregister(fork.ended)
        with contextlib.suppress(KeyError):
            self._waiting.unregister(fork.connection)
        os.close(fork.ended)
        fork.connection.close()
        del self._forks[fork.pid]

    def _hang_up(self, fork):
        """Who asked for it was killed, as the launcher would have been."""
        self._waiting.unregister(fork.connection)
        fork.kill_at = time.monotonic() + GRACE_S
        self._signal(fork, signal.SIGTERM)

    def _signal(self, fork, number):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(fork.pid, number)

    def _end_all(self):
        for fork in self._forks.values():
            self._signal(fork, signal.SIGKILL)
        os._exit(0)


def become(streams, asked):
    """Be what was asked for, in this fork, and end with its exit code."""
    code = 1
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, 1024)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
            stream = open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        sys.stdout.reconfigure(write_through=True)
        sys.stderr.reconfigure(write_through=True)
        os.environ.clear()
        os.environ.update(asked["environment"])
        show_environment(asked["environment"])
        os.sched_setaffinity(0, asked["cores"])
        os.chdir(asked["folder"])
        sys.path[:1] = [] if asked["environment"].get("PYTHONSAFEPATH") else [asked["folder"]]
        minus_m, module, *arguments = asked["arguments"]
        assert minus_m == "-m"
        sys.argv = [module, *arguments]
        sys.modules.pop(module, None)
        code = exit_code_of(
            functools.partial(runpy.run_module, module, run_name="__main__", alter_sys=True)
        )
    except BaseException:  # noqa: BLE001 - the end of a process
        import traceback

        traceback.print_exc()
    leave(code)


def show_environment(environment):
    """Write it where /proc/PID/environ is read from, over the server's."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    shown = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    assert len(shown) < end - start
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(shown.ljust(end - start, b"\0"))


def main(path):
    """Import, and serve."""
    server_place = place()  # before libraries set variables of theirs
    gc.disable()
    for needed in spawn.IMPORTED_ONCE:
        importlib.import_module(needed)
    import torch.multiprocessing  # noqa: F401

    gc.freeze()
    gc.enable()
    Server(path, server_place).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
