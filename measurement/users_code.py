"""A user's own code: where a class is defined, and how it is imported."""

from __future__ import annotations

import argparse
import contextlib
import inspect
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


IMPORT_LOCK = threading.RLock()
"""Threads that start commands on several hosts import launchers at once: one must not restore what
another has replaced."""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A context in which a module is imported, by one thread at a time; ``sys.argv`` has no
    arguments.

    Raises:
        RuntimeError: it reads Ringside's command line by ``parse_args()``, or ends the program.
    """
    with IMPORT_LOCK:
        read, arguments = argparse.ArgumentParser.parse_known_args, sys.argv

        def parse(parser: Any, args: Any = None, *more: Any, **named: Any) -> Any:
            if args is None:
                raise RuntimeError(
                    "it calls parse_args() when imported, and the command line is ringside's;"
                    f" {REMEDY}"
                )
            return read(parser, args, *more, **named)

        sys.argv = arguments[:1]
        setattr(argparse.ArgumentParser, "parse_known_args", parse)  # noqa: B010 - mypy takes no assignment to a method
        try:
            yield
        except SystemExit as ended:
            raise RuntimeError(
                f"it ends the program when imported, by sys.exit({ended.code!r}); {REMEDY}"
            ) from ended
        finally:
            sys.argv = arguments
            setattr(argparse.ArgumentParser, "parse_known_args", read)  # noqa: B010
