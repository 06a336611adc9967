"""A user's own code: where a class is defined, and how it is imported."""

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
    """Where a user's class or function is defined; None if it is not a user's, or not in a file."""
    try:
        file = inspect.getsourcefile(thing)  # type: ignore[arg-type]
        _, line = inspect.getsourcelines(thing)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    return Place(file, line) if file and is_users(file) else None


REMEDY = """put what runs as a program under 'if __name__ == "__main__":'"""


class RunsWhenImportedError(Exception):
    """The module read the command line, or ended the program, while it was imported."""


class _BufferedStderr:
    """Standard error that keeps its text until it is known whether to show it.

    A logger may keep using it later.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self._kept = stream, list[str]()
        self._is_held = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Keep the text, or pass it on."""
        (self._kept.append if self._is_held else self._stream.write)(text)
        return len(text)

    def release(self, *, show: bool) -> None:
        """Pass on text from now on, and what was kept if ``show``."""
        self._is_held = False
        if show:
            self._stream.write("".join(self._kept))


IMPORT_LOCK = threading.RLock()
"""Threads that start commands on several hosts import launchers at once: one must not restore what
another has replaced."""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A context in which a module is imported, by one thread at a time.

    Raises:
        RunsWhenImportedError: it reads Ringside's command line, or ends the program. Its output on
            stderr is dropped.
    """
    errors = _BufferedStderr(sys.stderr)
    is_sound = True
    try:
        with IMPORT_LOCK, _isolated_command_line(), contextlib.redirect_stderr(errors):
            yield
    except SystemExit as ended:
        is_sound = False
        code = "" if ended.code is None else repr(ended.code)
        raise RunsWhenImportedError(
            f"it ends the program when imported, by sys.exit({code}); {REMEDY}"
        ) from ended
    finally:
        errors.release(show=is_sound)


@contextlib.contextmanager
def _isolated_command_line() -> Iterator[None]:
    """Have ``parse_args()`` and ``os._exit()`` raise, and no arguments in ``sys.argv``.

    Forked children may end as usual.
    """
    read, leave, own_pid = argparse.ArgumentParser.parse_known_args, os._exit, os.getpid()
    arguments, sys.argv = sys.argv, sys.argv[:1]

    def parse(parser: Any, args: Any = None, *more: Any, **named: Any) -> Any:
        if args is None:
            raise RunsWhenImportedError(
                f"it calls parse_args() when imported, and the command line is ringside's; {REMEDY}"
            )
        return read(parser, args, *more, **named)

    def end(status: int) -> None:
        if os.getpid() != own_pid:
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
