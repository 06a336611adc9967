"""Who had the core: how long each thread of this process ran, and how long it was ready to run and had to wait for a core.

From the kernel's scheduler, ``/proc/<pid>/task/<tid>/schedstat`` (Documentation/scheduler/sched-stats.rst): nanoseconds on a CPU,
nanoseconds on a run queue, and the number of time slices.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from measurement.records.record import ThreadTimes

TASKS = Path("/proc/self/task")
AUTOGRAD = "pt_autograd"
"""Beginning of the names of PyTorch's own threads that run backward passes on GPUs. They appear with the first one."""


@dataclass(frozen=True)
class ThreadReading:
    """Nanoseconds that a thread has run and waited for a core, by thread."""

    by_thread: dict[int, tuple[int, int]]


class ThreadClock:
    """Tells the training thread, which is the one that makes it, from the library's: those that appear later."""

    def __init__(self) -> None:
        self._training = threading.get_native_id()
        self._own = frozenset(own_threads())

    def read(self) -> ThreadReading | None:
        """Read the counters; None where the kernel does not keep them. Takes some 10 microseconds for each thread."""
        found = {thread: times for thread in own_threads() if (times := _schedstat(thread)) is not None}
        return ThreadReading(found) if self._training in found else None

    def between(self, before: ThreadReading | None, after: ThreadReading | None) -> ThreadTimes | None:
        """What the threads did between two readings; None where there are none."""
        if before is None or after is None:
            return None
        nothing = (0, 0)
        spent = {
            thread: (running - before.by_thread.get(thread, nothing)[0], waiting - before.by_thread.get(thread, nothing)[1])
            for thread, (running, waiting) in after.by_thread.items()
        }
        running, waiting = spent.pop(self._training)
        library = [thread for thread in spent if thread not in self._own and not _name(thread).startswith(AUTOGRAD)]
        return ThreadTimes(
            running_s=running / 1e9,
            runnable_s=waiting / 1e9,
            library_s=sum(spent[thread][0] for thread in library) / 1e9,
            others_s=sum(spent[thread][0] for thread in spent if thread not in library) / 1e9,
        )


def own_threads() -> list[int]:
    """Return the ids of this process' threads; empty where there is no /proc."""
    try:
        return [int(entry.name) for entry in os.scandir(TASKS)]
    except OSError:
        return []


def _schedstat(thread: int) -> tuple[int, int] | None:
    """None if it has ended, or the kernel does not tell."""
    try:
        running, waiting, _slices = (TASKS / str(thread) / "schedstat").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return int(running), int(waiting)


def _name(thread: int) -> str:
    try:
        return (TASKS / str(thread) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
