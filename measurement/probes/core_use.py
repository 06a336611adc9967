"""Who used the cores: what the kernel counted on them, and what this process and its children took of it.

/proc/stat counts in ticks of usually 10 ms, so a block of 0.3 s on two cores is known to about 3% of them, many blocks together far
better. Time that a hypervisor gave to others (steal) is counted apart.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from measurement.records.record import CoreUse, load_of

STAT = Path("/proc/stat")
TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


@dataclass(frozen=True, kw_only=True)
class CoreUseReading:
    """The counters at one time; ``since`` makes a record of what they counted in between."""

    cores: Sequence[int]
    seconds: dict[str, float]
    """By the names that ``CoreUse`` has."""

    def since(self, before: CoreUseReading) -> CoreUse:
        """What the cores were used for between two readings."""
        spent = {name: now - before.seconds[name] for name, now in self.seconds.items()}
        return CoreUse(host=socket.gethostname(), cores=list(self.cores), **spent)


def read_core_use(cores: Sequence[int]) -> CoreUseReading | None:
    """Read the counters of these cores and of this process; None where the kernel does not tell. Takes about half a millisecond.

    The thread that calls it counts as the training thread.
    """
    counted = core_seconds(cores)
    if counted is None:
        return None
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    process_s = time.process_time()
    seconds = {
        "own_s": process_s + ended.ru_utime + ended.ru_stime + sum(map(_process_seconds, _descendants(os.getpid()))),
        "wall_s": time.monotonic(),
        "other_threads_s": process_s - time.thread_time(),
    }
    return CoreUseReading(cores=cores, seconds=dict(zip(("busy_s", "steal_s"), counted, strict=True)) | seconds)


def foreign_share(cores: Sequence[int], *, seconds: float) -> float | None:
    """Watch these cores for some seconds: the share of them that others use; None where the kernel does not tell."""
    before = read_core_use(cores)
    time.sleep(seconds)
    after = read_core_use(cores)
    return load_of([after.since(before)])["foreign_share"] if before and after else None


def crowded_warning(ranks: int, cores: int | None) -> str | None:
    """A sentence where ranks that compute on the CPU share cores; ``cores``: that they may use together, None where not known."""
    if cores is None or ranks <= cores:
        return None
    return (
        f"{ranks} ranks share {cores} core{'' if cores == 1 else 's'}: each also waits for its turn on a core, most of all in "
        f"exchange, as it would not where every rank has its own; use at most {cores} to ask about the libraries"
    )


def core_seconds(cores: Sequence[int]) -> tuple[float, float] | None:
    """Seconds that these cores were busy, and that a hypervisor gave to others, since the machine started; None without /proc."""
    names = {f"cpu{core}" for core in cores}
    try:
        rows = [line.split() for line in STAT.read_text(encoding="utf-8").splitlines() if line.startswith("cpu")]
    except OSError:
        return None
    ticks = [list(map(int, row[1:])) for row in rows if row[0] in names]
    if len(ticks) != len(names) or not names:
        return None
    busy = sum(user + nice + system + irq + softirq for user, nice, system, _idle, _wait, irq, softirq, *_ in ticks)
    steal = sum(row[7] for row in ticks if len(row) > 7)
    return busy * TICK_S, steal * TICK_S


def _descendants(pid: int) -> Iterator[int]:
    """Children of a process and theirs, of those that live."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listed.read_text(encoding="utf-8").split()):
                yield child
                yield from _descendants(child)


def _process_seconds(pid: int) -> float:
    """User and system time of a process and of its children that have ended; 0 if it has ended itself."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) * TICK_S
