"""A user's own code: where a class of theirs is written, and its import."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from measurement.agent.ringside_agent.users_lines import Place, is_users


def place_of_definition(thing: object) -> Place | None:
    """Where a class or function of the user's is written; None if it is not theirs, or not in a file."""
    try:
        file = inspect.getsourcefile(thing)  # type: ignore[arg-type]
        _, line = inspect.getsourcelines(thing)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    return Place(file, line) if file and is_users(file) else None


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
