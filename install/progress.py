"""Shows the progress of a long build: one line that is redrawn on a terminal, or a plain line every 20 seconds elsewhere."""

import re
import sys
import time
from collections.abc import Callable
from typing import TextIO

CMAKE_STEP = re.compile(r"\[\s*(\d+)%\] (Building \w+ object (?P<object>\S+)|Linking \w+ \w+ library (?P<library>\S+))")
PLAIN_EVERY_S = 20.0


def parse_step(line: str) -> tuple[int, str] | None:
    """Read percentage and file name from one line of CMake's output; None if the line is no progress line.

    Such as "[ 26%] Building CXX object third_party/gloo/gloo/CMakeFiles/gloo.dir/context.cc.o".
    """
    found = CMAKE_STEP.search(line)
    if found is None:
        return None
    target = found["object"] or found["library"].rpartition("/")[2]
    return int(found.group(1)), re.sub(r"(CMakeFiles/[^/]+\.dir/|__/)", "", target).removesuffix(".o")


class BuildProgress:
    """Shows the elapsed time and the current step."""

    def __init__(self, title: str, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock. ``clock`` is monotonic, in seconds; ``stream`` is standard error by default."""
        self._title = title
        self._stream = stream or sys.stderr
        self._clock = clock
        self._started_s = clock()
        self._shown_s = float("-inf")
        self._redraw = self._stream.isatty()

    def feed(self, line: str) -> None:
        """Show the progress that a line of build output tells, if any."""
        step = parse_step(line)
        if step is not None:
            self._show(f"{step[0]:3d}%  {step[1]}")

    def note(self, what: str) -> None:
        """Show what begins now, at once."""
        self._shown_s = float("-inf")
        self._show(what)

    def close(self) -> None:
        """End the line, so that it stays on the screen."""
        if self._redraw:
            self._stream.write("\n")
            self._stream.flush()

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return self._clock() - self._started_s

    def _show(self, what: str) -> None:
        now_s = self._clock()
        if not self._redraw and now_s - self._shown_s < PLAIN_EVERY_S:
            return
        self._shown_s = now_s
        minutes, seconds = divmod(int(self.elapsed_s()), 60)
        line = f"{self._title}  {minutes}:{seconds:02d}  {what}"
        self._stream.write(f"\r\033[K{line[:110]}" if self._redraw else f"{line}\n")
        self._stream.flush()
