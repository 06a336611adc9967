"""Times the stages of a process's start."""

from __future__ import annotations

import os
import time
from pathlib import Path

STARTED = 19
"""Index of ``starttime`` after the name in /proc/PID/stat (proc_pid_stat(5)): ticks since boot."""


class StartClock:
    """Seconds of each stage of a start, from the creation of the process."""

    def __init__(self) -> None:
        self.stages_s: dict[str, float] = {}
        self._last = time.monotonic() - _age_s()

    def mark(self, stage: str) -> None:
        """End a stage."""
        now = time.monotonic()
        self.stages_s[stage], self._last = round(now - self._last, 3), now


def _age_s() -> float:
    """Seconds since this process was created; 0 where the kernel does not report it."""
    try:
        ticks = int(
            Path("/proc/self/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[STARTED]
        )
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
    except (OSError, AttributeError):
        return 0.0
