"""Imports a user's module, and refuses one that runs as a program when it is imported: it would in every rank."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

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


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A context in which a module is imported.

    Raises:
        RunsWhenImportedError: it reads the command line, which is ours, or ends the program. What it said on stderr is dropped.
    """
    errors = _HeldBack(sys.stderr)
    is_sound = True
    try:
        with _own_command_line(), contextlib.redirect_stderr(errors):
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
