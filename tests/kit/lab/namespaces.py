"""Namespaces: made and named by a file, and the processes that live in them.

A process belongs to the lab when its network namespace does. That needs no list of process ids,
which a crash could leave unwritten and a reboot make wrong, and it also finds what a user started
in a host by hand.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.kit.lab.programs import program, run
from tests.kit.lab.state import NETWORKS, STATE, LabError

Identity = tuple[int, int]
"""Device and inode of a namespace: the same for its file and for /proc/PID/ns/net of every process
in it."""
END_S = 10.0


def make_network(name: str) -> None:
    """A new network namespace, kept by a file of its own. Nothing runs in it yet."""
    NETWORKS.mkdir(exist_ok=True)
    file = NETWORKS / name
    file.touch()
    run("unshare", f"--net={file}", "true")


def run_in_network(name: str, *argv: str, stdin: str = "") -> str:
    """Run a program of the machine inside a network namespace; see ``programs.run``."""
    return run(
        "nsenter", f"--net={NETWORKS / name}", "--", program(argv[0]), *argv[1:], stdin=stdin
    )


def listens(name: str, port: int) -> bool:
    """Whether something listens on a port of a host."""
    _, *lines = run_in_network(name, "cat", "/proc/net/tcp").splitlines()
    sockets = [line.split() for line in lines]
    return any(
        local.endswith(f":{port:04X}") and state == "0A" for _, local, _, state, *_ in sockets
    )


def networks() -> dict[str, Identity]:
    """The lab's network namespaces by name; a file on which none was mounted yet stands for
    none."""
    mounted = mounts()
    return {
        file.name: identity(file) for file in sorted(NETWORKS.glob("*")) if str(file) in mounted
    }


def identity(file: Path) -> Identity:
    """What tells one namespace from another."""
    status = file.stat()
    return status.st_dev, status.st_ino


def processes_in(wanted: Sequence[Identity]) -> Iterator[int]:
    """The ids of all processes in some network namespaces."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if identity(entry / "ns" / "net") in wanted:
                    yield int(entry.name)


def init_of(name: str) -> int | None:
    """The process that a host lives and dies with, or None where the host is dead."""
    process = networks().get(name)
    inits = []
    for pid in processes_in([process] if process else []):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
            levels = next(
                line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")
            )
            if len(levels) > 1 and levels[-1] == "1":
                inits.append((len(levels), pid))
    return min(inits)[1] if inits else None


def end_processes(wanted: Sequence[Identity]) -> None:
    """Kill every process in some network namespaces, and wait until all are gone.

    Raises:
        LabError: some did not go.
    """
    deadline = time.monotonic() + END_S
    while left := list(processes_in(wanted)):
        if time.monotonic() > deadline:
            raise LabError(
                f"processes {', '.join(map(str, left))} of the lab do not end; try again: python -m tests.kit.lab down"
            )
        for pid in left:
            kill_in(pid, wanted)
        time.sleep(0.02)


def kill_in(pid: int, wanted: Sequence[Identity]) -> None:
    """SIGKILL a process, if it still is one of those wanted: between a look and a signal, an id may
    change hands."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if identity(Path(f"/proc/{pid}/ns/net")) in wanted:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def mounts() -> list[str]:
    """What is mounted inside the lab's folder, deepest first."""
    points = [
        line.split()[4]
        for line in Path("/proc/self/mountinfo")
        .read_text(encoding="utf-8", errors="replace")
        .splitlines()
    ]
    return sorted((point for point in points if Path(point).is_relative_to(STATE)), reverse=True)


def enter_command(pid: int, *, folder: Path, argv: Sequence[str]) -> list[str]:
    """The argv that runs a command in the host whose init is ``pid``, on its cores; it is told to
    end when the one who waits for it does."""
    cores = ",".join(map(str, os.sched_getaffinity(pid)))
    on_cores = [program("taskset"), "--cpu-list", cores, program("nsenter")]
    entered = f"--target={pid} --mount --uts --ipc --net --pid -- env -C".split()
    dies_too = ["setpriv", "--pdeathsig", "TERM", "--"]
    return [*on_cores, *entered, str(folder), *dies_too, *argv]
