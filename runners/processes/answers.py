"""Answers of processes, framed on their standard output so that a shell's greeting and other output
can be skipped.

The caller gives the process a new mark in its environment each time. The frame is more than the
mark, since shells may print the command line. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys

MARK = "RINGSIDE_ANSWER_MARK"
STDOUT = 1


def new_mark() -> str:
    """Return a random mark, which nothing else prints."""
    return secrets.token_hex(16)


def give(answer: str | bytes) -> None:
    """Write an answer to standard output; without a frame if there is no mark, as when a person
    runs the command.
    """
    content = answer.encode() if isinstance(answer, str) else answer
    mark = os.environ.get(MARK)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    # a user's module may have replaced sys.stdout
    with open(STDOUT, "wb", closefd=False) as output:
        output.write(framed(content, mark) if mark else content + b"\n")


def framed(content: bytes, mark: str) -> bytes:
    """Return an answer in its frame. Pure."""
    return f"<{mark}>".encode() + content + f"</{mark}>\n".encode()


def taken(output: bytes, mark: str) -> bytes | None:
    """Return the first answer in some output; None if there is no whole one. Pure."""
    begin, end = f"<{mark}>".encode(), f"</{mark}>\n".encode()
    answer, ended, _ = output.partition(begin)[2].partition(end)
    return answer if ended else None
