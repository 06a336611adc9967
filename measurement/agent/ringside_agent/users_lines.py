"""Where in a user's own code an error arose: file, line, and the lines around.

Libraries and Ringside are left out.
"""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
import time
import traceback
from functools import lru_cache
from typing import Any, NamedTuple, Sequence

from .reporting import message_of

LINES_AROUND = 2
HOUSE = os.path.abspath(__file__).rsplit(os.sep, 4)[0]
ROOMS = ("backends", "install", "measurement", "reports", "runners", "workloads")
"""Ringside's packages."""
INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders of installed packages: an environment's, a user's (``pip install --user``), Debian's."""
FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,? in (?P<function>.+))?$', re.MULTILINE
)


class Place(NamedTuple):
    """A line of a user's file."""

    file: str
    line: int
    function: str | None = None

    def __str__(self) -> str:
        inside = (
            f", in {self.function}" if self.function and not self.function.startswith("<") else ""
        )
        file, folder = os.path.realpath(self.file), os.path.realpath(os.curdir) + os.sep
        return f"{file[len(folder) :] if file.startswith(folder) else file}:{self.line}{inside}"

    def excerpt(self) -> list[str]:
        """The line and those around it, numbered, the line itself marked; empty if the file cannot
        be read.
        """
        lines = linecache.getlines(self.file)
        first, last = max(1, self.line - LINES_AROUND), min(len(lines), self.line + LINES_AROUND)
        return [
            f"{'>' if n == self.line else ' '} {n:4} | {lines[n - 1].rstrip()}".rstrip()
            for n in range(first, last + 1)
        ]


class Described(NamedTuple):
    """An exception in a few lines."""

    message: str
    """One line: class, what it says, the user's file and line."""
    excerpt: Sequence[str] = ()
    """The user's lines around."""

    def __str__(self) -> str:
        return "\n".join([self.message, *self.excerpt])


def at_line(message: str, place: Place | None) -> Described:
    """A message with where it arose, and the lines around, indented."""
    if place is None:
        return Described(message)
    return Described(f"{message}, at {place}", [f"  {line}" for line in place.excerpt()])


def describe(error: BaseException) -> Described:
    """What was raised, and at which of the user's lines.

    After a ``MemoryError``, frees what the frames of its traceback held.
    """
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)
    return at_line(message_of(error), place_of(error))


def error_reply(error: Described, *, cause: str = "exception") -> dict[str, Any]:
    """The reply to the driver about an exception that was raised just now; see ``ErrorReply``."""
    return {
        "kind": "error",
        "cause": cause,
        "message": error.message,
        "excerpt": list(error.excerpt),
        "at_s": time.time(),
    }


def agent_lines(error: BaseException) -> list[str]:
    """Where in the agent an exception arose."""
    return [
        f"  {os.path.basename(frame.filename)}:{frame.lineno}, {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]


def place_of(error: BaseException) -> Place | None:
    """The innermost line of the user's own code in an error's traceback; None if there is none.

    PyTorch puts the traceback of a loader process into the message, which is read, too.
    """
    return place_in("".join(traceback.format_exception(type(error), error, error.__traceback__)))


def place_in(text: str) -> Place | None:
    """The last line of the user's own code in a traceback, or in several."""
    frames = [match for match in FRAME.finditer(text) if is_users(match["file"])]
    if not frames:
        return None
    file, line, function = frames[-1].groups()
    return Place(file, int(line), function)


def is_users(file: str | os.PathLike[str]) -> bool:
    """Whether a file is a user's: neither Ringside's, nor Python's, nor that of an installed
    package.
    """
    resolved = os.path.realpath(file)
    is_installed = not INSTALLED.isdisjoint(resolved.split(os.sep))
    return os.path.isfile(resolved) and not is_installed and not resolved.startswith(_of_others())


@lru_cache(maxsize=None)
def _of_others() -> tuple[str, ...]:
    """The folders of Python and of our packages."""
    python = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    others = [*python, *(os.path.join(HOUSE, room) for room in ROOMS)]
    return tuple(os.path.realpath(path) + os.sep for path in others)
