"""The supervisor of one rank: a small process beside it that stops, continues and, if needed, kills
it.

A stopped rank cannot receive commands, and launchers do not stop their ranks. So each rank starts a
supervisor (``agent.join``): ours before anything else, a script's at its first step. It has a
connection to the driver, or to the first supervisor on its host (``host_relay``), and obeys its
words. If the connection ends, whatever the reason, it kills its rank and ends, so that no rank is
left behind, stopped or not. If the rank ends, it reports when. If the supervisor itself ends, the
kernel kills the rank (Linux), which may be stopped.

It stops, continues and kills the rank's whole process tree: loader workers too, and what they
started.

Standard library only, Python 3.8 or later, run as a file with ``python -I -S``: it must start in
milliseconds and use next to no CPU time.
"""

from __future__ import annotations

import contextlib
import hmac
import importlib
import io
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

STOPPED = ("T", "t", "Z", "X")
"""The kernel's letters for processes that do not run: stopped, traced, ended."""
JOINED = "joined"
REFUSED = "refused"
GONE = "gone"
FAILED = "failed"
COUNTERS = "counters"
STOP_TIMEOUT_S = 30.0
"""Time limit for stopping a process tree. A process stops when it next has a core, or its disk has
answered."""
THIS_FILE = str(Path(__file__).resolve())
GREETING_S = 60
LOST_AFTER_S = 20
"""After this long without an answer, the other host counts as lost."""


def greet(
    address: tuple[str, int],
    key: str,
    who: Sequence[str],
    *,
    clock: Callable[[], float] = time.time,
) -> socket.socket:
    """Connect to the driver and send who this is and what ``clock`` shows, with the proof that it
    belongs to the comparison.

    Raises:
        OSError: the driver cannot be reached, or does not answer.
    """
    deadline = time.monotonic() + GREETING_S
    while True:
        connection = socket.create_connection(address, timeout=GREETING_S)
        with contextlib.suppress(ConnectionError):  # connection limit reached
            challenge = receive_line(connection)
            greeting = [*who, str(clock())]
            connection.sendall(
                f"{' '.join(greeting)} {prove(key, challenge, *greeting)}\n".encode()
            )
            connection.settimeout(None)
            return connection
        connection.close()
        if time.monotonic() > deadline:
            raise ConnectionError("it closes the connection")
        time.sleep(0.05)


def receive_line(connection: socket.socket, *, max_bytes: int = 256) -> str:
    """Return the next line, of at most ``max_bytes``; nothing after it is read.

    Raises:
        ConnectionError: the connection ends first, or the line is longer.
    """
    line = b""
    while not line.endswith(b"\n"):
        waiting = connection.recv(max_bytes, socket.MSG_PEEK)
        line += connection.recv((waiting.find(b"\n") + 1) or len(waiting))
        if not waiting or len(line) > max_bytes:
            raise ConnectionError("no line came")
    return line.decode(errors="replace").strip()


def prove(key: str, *words: str) -> str:
    """Return the HMAC-SHA-256 of these words by the key, hexadecimal."""
    return hmac.new(key.encode(), " ".join(words).encode(), "sha256").hexdigest()


def kill_rank(tree: ProcessTree) -> None:
    """Kill the rank's process tree, unless the rank has ended: its pid may be another's by now."""
    if is_parent(tree.root):
        tree.kill()


def is_parent(pid: int) -> bool:
    """Whether the process that started this one still runs.

    A process that ends loses its children at once.
    """
    return os.getppid() == pid


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends; None where there are none, or
    it has ended.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        # Python 3.8; an older kernel (ENOSYS), a filter that forbids it (EPERM)
        return None


def read_counters(rank: int) -> str:
    """The host's counters in JSON, after the word that asks for them; or why the supervisor of
    ``rank`` cannot read them.
    """
    try:
        return f"{COUNTERS} {json.dumps(_counters())}"
    except Exception as error:  # noqa: BLE001 - it must go on to stop ranks
        return f"{FAILED} {COUNTERS} {rank} {type(error).__name__}: {' '.join(str(error).split())}"


def _counters() -> dict[str, Any]:
    # only here: a supervisor starts with the standard library alone
    if "measurement" not in sys.modules:
        import site

        site.main()
        sys.path.append(str(Path(THIS_FILE).parents[4]))
    from measurement.host_counters import read_counters as read_all

    return read_all()


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice a host that is lost without closing the connection.

    One that does not read what was sent for so long (TCP_USER_TIMEOUT) counts as lost, too.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        socket.TCP_KEEPIDLE: LOST_AFTER_S // 4,
        socket.TCP_KEEPINTVL: LOST_AFTER_S // 4,
        socket.TCP_KEEPCNT: 3,
        socket.TCP_USER_TIMEOUT: 1000 * LOST_AFTER_S,
    }
    for option, value in options.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class ProcessTree:
    """A process and its descendants, without supervisors."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._stopped: list[int] = []

    def obey(self, word: str) -> str:
        """Carry out the driver's word. Returns why that failed, else an empty string."""
        if word == "stop":
            running = self.stop(timeout_s=STOP_TIMEOUT_S)
            if running:
                named = ", ".join(f"{pid} (state {letter})" for pid, letter in running.items())
                return f"process {named} did not stop within {STOP_TIMEOUT_S:g} s"
        elif word == "continue":
            self.go_on()
        elif word == "trace":
            send(self.root, signal.SIGUSR1)
        elif word == "kill":
            self.kill()
        return ""

    def stop(self, *, timeout_s: float) -> dict[int, str]:
        """Stop every process. Returns when all have stopped, or the time is over.

        Children are stopped once their parent has stopped, since it then starts no others. It is
        then not waiting for a child to begin its program either (vfork), which a stopped child
        would never do.

        Returns:
            The kernel's letters of the processes that still run, by pid.
        """
        deadline = time.monotonic() + timeout_s
        self._stopped, new = [], [self.root]
        while new:
            for pid in new:
                send(pid, signal.SIGSTOP)
            self._stopped += new
            running = await_stopped(new, deadline=deadline)
            if running:
                return running
            new = self._children(self._stopped)
        return {}

    def go_on(self) -> None:
        """Continue what ``stop`` stopped, the root last."""
        for pid in reversed(self._stopped or [self.root]):
            send(pid, signal.SIGCONT)
        self._stopped = []

    def kill(self) -> None:
        """Kill every process, the root last.

        They are stopped first, so that none can start another one.
        """
        self.stop(timeout_s=1.0)
        processes = new = [self.root]
        while new:
            new = self._children(processes)
            processes = [*processes, *new]
        for pid in reversed(processes):
            send(pid, signal.SIGKILL)

    @staticmethod
    def _children(parents: Sequence[int]) -> list[int]:
        """Return the children of these processes that are not among them."""
        children = (
            children_from_tasks
            if Path("/proc/thread-self/children").exists()
            else children_from_all_processes()
        )
        new = [child for pid in parents for child in children(pid) if child not in parents]
        return [child for child in new if not is_supervisor(child)]


def children_from_tasks(pid: int) -> list[int]:
    """Return the children of a process, from the lists that most kernels keep for each of its
    threads.
    """
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.scandir(f"/proc/{pid}/task"):
            pids += map(int, read(f"{thread.path}/children").split())
    return pids


def children_from_all_processes() -> Callable[[int], list[int]]:
    """Read every process' parent, and return a function that looks up the children of a process."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):  # there is no /proc
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal() and (fields := stat(int(entry.name))):
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    return lambda pid: children.get(pid, [])


def await_stopped(pids: Iterable[int], *, deadline: float) -> dict[int, str]:
    """Wait until processes have stopped, at most until ``deadline`` (``time.monotonic``).

    Returns:
        The kernel's letters of those that still run, by pid.
    """
    while True:
        running = {pid: letter for pid in pids if (letter := state(pid)) not in STOPPED}
        if not running or time.monotonic() >= deadline:
            return running
        time.sleep(0.0002)
        pids = running


def is_supervisor(pid: int) -> bool:
    """Whether a process is the supervisor of a rank."""
    return THIS_FILE in read(f"/proc/{pid}/cmdline").split("\0")


def send(pid: int, sent: int) -> None:
    """Send a signal to a process; nothing happens if it has ended, or is another user's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sent)


def state(pid: int) -> str:
    """Return the kernel's letter for a process' state; 'X' if it has ended, or if there is no
    /proc.
    """
    fields = stat(pid)
    return fields[0] if fields else "X"


def stat(pid: int) -> list[str]:
    """Return a process' fields in /proc from its state and its parent on; empty if it has ended, or
    if there is no /proc.
    """
    return read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def read(path: str) -> str:
    """Return the text of a file in /proc; empty if its process has ended.

    Hundreds are read at each stop: a Path costs as much.
    """
    try:
        with io.FileIO(path) as file:
            return file.readall().decode(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    # for this import only: it also contains a sitecustomize
    sys.path.append(str(Path(THIS_FILE).parents[2]))
    host_relay = importlib.import_module("ringside_agent.supervision.host_relay")
    sys.path.pop()
    host_relay.watch(*sys.argv[1:4], who=sys.argv[4:])
