"""Where the seconds of a process's start go."""

from __future__ import annotations

import os
import time
from pathlib import Path

STARTED = 19
"""The place of ``starttime`` behind the name in /proc/PID/stat (proc_pid_stat(5)): ticks since the machine came up."""


class StartClock:
    """Seconds of each stage of a start, from when the kernel made the process."""

    def __init__(self) -> None:
        self.stages_s: dict[str, float] = {}
        self._last = time.monotonic() - _age_s()

    def mark(self, stage: str) -> None:
        """End a stage."""
        now = time.monotonic()
        self.stages_s[stage], self._last = round(now - self._last, 3), now


def _age_s() -> float:
    """Seconds since this process was made; 0 where the kernel does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[STARTED])
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
    except (OSError, AttributeError):
        return 0.0
