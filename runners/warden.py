"""The warden of one rank: a small sibling process that stops, continues and, if need be, kills it.

A rank that is stopped cannot listen, and a launcher cannot be asked to stop its ranks, so each rank starts a warden before
anything else. It holds a connection to the driver and does what it is told. If the driver goes away, however it went, the
warden kills its rank and ends: nothing is left behind, a frozen rank least of all. If the rank goes away, it says at once when.

Standard library only, run as a file with ``python -I -S``: it must start in milliseconds and never compete for the CPU.
Each line from the driver is a word (``stop``, ``continue``, ``trace``, ``kill``), answered by the same word when it is done.
The last line, ``gone SECONDS``, is the warden's own: when its rank ended, by this host's clock.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SIGNALS = {"stop": signal.SIGSTOP, "continue": signal.SIGCONT, "trace": signal.SIGUSR1, "kill": signal.SIGKILL}
STOPPED = ("T", "t", "Z", "X")
GONE = "gone"
LOSS_S = 20
"""After so long without a sign of life, the host at the other end counts as gone."""


def start(driver: str, token: str, arm: str, launch: int, rank: int) -> None:
    """Start this process's warden; called by a rank as its first deed."""
    told = [driver, token, arm, str(launch), str(rank), socket.gethostname(), str(os.getpid())]
    subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *told],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def watch(driver: str, token: str, arm: str, launch: str, rank: str, host: str, pid: str) -> None:
    """Serve until the rank or the driver has gone."""
    ward = int(pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    address, _, port = driver.rpartition(":")
    try:
        connection = socket.create_connection((address.strip("[]"), int(port)), timeout=60)
        connection.settimeout(None)
        keep_alive(connection)
        connection.sendall(f"{token} {arm} {launch} {rank} {host} {pid}\n".encode())
    except OSError as error:
        os.kill(ward, signal.SIGKILL)
        sys.exit(f"ringside: the warden of rank {rank} on {host} cannot reach the driver at {driver}: {error}")
    gone = os.pidfd_open(ward) if hasattr(os, "pidfd_open") else None
    listening: list[Any] = [connection] if gone is None else [connection, gone]
    while True:
        ready, _, _ = select.select(listening, [], [], 1.0 if gone is None else None)
        if gone in ready or (gone is None and not is_alive(ward)):
            with contextlib.suppress(OSError):  # the driver may have gone as well
                connection.sendall(f"{GONE} {time.time()}\n".encode())
            return
        if connection in ready:
            words = receive(connection)
            if not words:
                signal_ward(ward, "kill")
                return
            for word in words:
                signal_ward(ward, word)
                connection.sendall(f"{word}\n".encode())


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice when the other host vanishes without closing: power, cable, kernel."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = (
        ("TCP_KEEPIDLE", LOSS_S // 4),
        ("TCP_KEEPINTVL", LOSS_S // 4),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 1000 * LOSS_S),
    )
    for name, value in wanted:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def receive(connection: socket.socket) -> list[str]:
    """The words that have come; none when the driver has gone."""
    try:
        return connection.recv(4096).decode().split()
    except OSError:
        return []


def signal_ward(ward: int, word: str) -> None:
    """Send the signal; ``stop`` returns when the process has really stopped."""
    try:
        os.kill(ward, SIGNALS[word])
    except ProcessLookupError:
        return
    deadline = time.monotonic() + 1.0
    while word == "stop" and state(ward) not in STOPPED and time.monotonic() < deadline:
        time.sleep(0.0005)


def state(pid: int) -> str:
    """The kernel's letter for what a process is doing; 'X' when it is gone; where there is no /proc, taken as stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_alive(pid: int) -> bool:
    """Whether the process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    watch(*sys.argv[1:])
