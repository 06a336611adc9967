"""Where an error arose in a user's own code: file, line, and the lines around. Ours, PyTorch's and Python's are not theirs."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import linecache
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measurement.own_packages import HOUSE, NAMES

LINES_AROUND = 2
LONGEST = 600
"""Characters of a message; PyTorch's longest explain themselves in their first lines."""
LIBRARIES = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")})
FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,? in (?P<function>.+))?$', re.MULTILINE)
FROM_LOADER = "Original Traceback"
"""In the message of an error that PyTorch brings from a loader process, before the traceback there."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A line of a user's file."""

    file: Path
    line: int
    function: str | None = None

    def __str__(self) -> str:
        inside = f", in {self.function}" if self.function and not self.function.startswith("<") else ""
        return f"{_short(self.file)}:{self.line}{inside}"

    def excerpt(self) -> list[str]:
        """The line and those around it, numbered, the line itself marked; empty if the file cannot be read."""
        lines = linecache.getlines(str(self.file))
        first, last = max(1, self.line - LINES_AROUND), min(len(lines), self.line + LINES_AROUND)
        return [f"{'>' if n == self.line else ' '} {n:4} | {lines[n - 1].rstrip()}".rstrip() for n in range(first, last + 1)]


def place_of(error: BaseException) -> Place | None:
    """The innermost line of the user's own code that an error came through; None if it came through none.

    Of an error in a loader process, PyTorch keeps the traceback in the message, which is read, too.
    """
    return place_in("".join(traceback.format_exception(error)))


def place_in(text: str) -> Place | None:
    """The last line of the user's own code in a traceback, or in several."""
    found = [match for match in FRAME.finditer(text) if is_users(Path(match["file"]))]
    if not found:
        return None
    last = found[-1]
    return Place(file=Path(last["file"]), line=int(last["line"]), function=last["function"])


def place_of_definition(thing: object) -> Place | None:
    """Where a class or function of the user's is written; None if it is not theirs, or not in a file."""
    try:
        file = inspect.getsourcefile(thing)  # type: ignore[arg-type]
        _, line = inspect.getsourcelines(thing)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    return Place(file=Path(file), line=line) if file and is_users(Path(file)) else None


def is_users(file: Path) -> bool:
    """Whether a file is a user's, which may lie anywhere but among ours and the installed packages."""
    resolved = file.resolve()
    if not resolved.is_file() or any(resolved.is_relative_to(library) for library in LIBRARIES):
        return False
    return not any(resolved.is_relative_to(HOUSE / room) for room in NAMES)


def message_of(error: BaseException) -> str:
    """The error's class and what it says, on one line: the first paragraph, or the last line of a loader process's traceback."""
    text = str(error).strip()
    if FROM_LOADER in text:
        return f"{text.splitlines()[-1].strip()} (in a loader process)"
    first = " ".join(text.partition("\n\n")[0].split())
    shortened = first if len(first) <= LONGEST else f"{first[:LONGEST]} ..."
    return f"{type(error).__name__}: {shortened}" if shortened else type(error).__name__


def paragraph(message: str, place: Place | None) -> str:
    """A message, where it arose, and the lines around, indented."""
    if place is None:
        return message
    return "\n".join([f"{message}, at {place}", *(f"  {line}" for line in place.excerpt())])


def _short(file: Path) -> Path:
    resolved = file.resolve()
    return resolved.relative_to(Path.cwd()) if resolved.is_relative_to(Path.cwd()) else resolved


REMEDY = """put what runs as a program under 'if __name__ == "__main__":'"""


class RunsWhenImportedError(Exception):
    """The module read the command line, or ended the program, while it was imported."""


class _HeldBack:
    """Standard error that keeps what is written until it is known whether to show it. A logger may hold it ever after."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._kept = stream, list[str]()
        self._is_held = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Keep or pass on."""
        (self._kept.append if self._is_held else self._stream.write)(text)
        return len(text)

    def release(self, *, show: bool) -> None:
        """Pass on from now on; what was kept, too, if asked."""
        self._is_held = False
        if show:
            self._stream.write("".join(self._kept))


ONE_AT_A_TIME = threading.RLock()
"""Threads start commands on several hosts at once, and each asks the launchers: what one found changed must not stay."""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A context in which a module is imported, by one thread at a time.

    Raises:
        RunsWhenImportedError: it reads the command line, which is ours, or ends the program. What it said on stderr is dropped.
    """
    errors = _HeldBack(sys.stderr)
    is_sound = True
    try:
        with ONE_AT_A_TIME, _own_command_line(), contextlib.redirect_stderr(errors):
            yield
    except SystemExit as ended:
        is_sound = False
        code = "" if ended.code is None else repr(ended.code)
        raise RunsWhenImportedError(f"it ends the program when imported, by sys.exit({code}); {REMEDY}") from ended
    finally:
        errors.release(show=is_sound)


@contextlib.contextmanager
def _own_command_line() -> Iterator[None]:
    """Have ``parse_args()`` and ``os._exit()`` raise, and no arguments in ``sys.argv``. Forked children may end as ever."""
    read, leave, here = argparse.ArgumentParser.parse_known_args, os._exit, os.getpid()
    arguments, sys.argv = sys.argv, sys.argv[:1]

    def parse(parser: Any, args: Any = None, *more: Any, **named: Any) -> Any:
        if args is None:
            raise RunsWhenImportedError(f"it calls parse_args() when imported, and the command line is ringside's; {REMEDY}")
        return read(parser, args, *more, **named)

    def end(status: int) -> None:
        if os.getpid() != here:
            leave(status)
        raise RunsWhenImportedError(f"it calls os._exit({status}) when imported; {REMEDY}")

    vars(os)["_exit"] = end
    setattr(argparse.ArgumentParser, "parse_known_args", parse)  # noqa: B010 - mypy takes no assignment to a method
    try:
        yield
    finally:
        sys.argv = arguments
        vars(os)["_exit"] = leave
        setattr(argparse.ArgumentParser, "parse_known_args", read)  # noqa: B010
