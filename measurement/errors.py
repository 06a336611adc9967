"""The errors a user may see.

Every message says what was wrong, the value seen, what is accepted and what to do.
"""

from __future__ import annotations

import difflib
import itertools
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

TWO_SCRIPTS = "to compare two scripts as they are: ringside ab 'COMMAND' 'COMMAND'"
"""Hint where a script is given and a plan or a workload is expected."""


class RingsideError(Exception):
    """Base of all errors that the user can fix; the command line prints them as one message and
    exits with 2.
    """

    was_reported = False
    """Whether a rank has already printed it, before it ended."""


@contextmanager
def about(what: str) -> Iterator[None]:
    """A context in which error messages begin with their subject, such as ``arm 'a'``."""
    try:
        yield
    except RingsideError as error:
        error.args = (str(error) if str(error).startswith(f"{what}: ") else f"{what}: {error}",)
        raise


class PlanError(RingsideError):
    """A plan, or an option of the command line, cannot be run as written."""


class UnavailableError(PlanError):
    """This machine lacks what an arm needs; other arms of the plan may run."""

    def __init__(self, message: str, *, lack: str = "") -> None:
        super().__init__(message)
        self.lack = lack
        """What is missing, such as ``'mpirun' is not installed``."""


class HostfileError(RingsideError):
    """A hostfile, or a list of hosts, cannot be read as written, or has too few slots."""


class LaunchError(RingsideError):
    """The processes of an arm could not be started or did not report."""


class WorldSizeMismatchError(RingsideError):
    """The library reports another number of ranks than was asked for: usually the wrong launcher
    for the backend.
    """


class ParityError(RingsideError):
    """An arm computes wrong gradients, parameters or samples."""


class RecordError(RingsideError):
    """A results folder is missing, damaged, or of another plan or version."""


class ReportError(RingsideError):
    """A report could not be sent to its destination; the measurements and the other reports are on
    disk.
    """


def shortened(names: Sequence[str]) -> str:
    """Names for a message: the first three, quoted, and how many more."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more


MAX_QUOTED = 100
"""Characters of a value that a message repeats."""
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = MAX_QUOTED
_REPR.maxlong = 40


def quoted(value: object) -> str:
    """A value for a message; long or deeply nested ones are cut."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # a number of more digits than Python writes
        text = "a number of thousands of digits"
    return cut(text)


def cut(text: str) -> str:
    """The text on one line, cut where it is long."""
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= 3 * MAX_QUOTED else f"{flat[: 3 * MAX_QUOTED]}..."


MAX_LISTED = 450
"""Characters of a list in a message; a single part may be longer."""


def joined(parts: Sequence[str]) -> str:
    """As many parts as fit into a message, and how many more there are."""
    lengths = itertools.accumulate(map(len, parts))
    fitting = max(sum(length <= MAX_LISTED for length in lengths), 1)
    more = f"; and {len(parts) - fitting} more" if fitting < len(parts) else ""
    return "; ".join(parts[:fitting]) + more


def unknown_name(
    kind: str,
    name: str,
    known: Iterable[str],
    *,
    remedy: str = "",
    elsewhere: Mapping[str, str] | None = None,
) -> str:
    """The message for a name that is not on a list: the closest one first, then all of them.

    ``elsewhere``: names that are valid in another place, with the place, such as ``under
    'measurement'``.
    """
    names, places = sorted(known), elsewhere or {}
    name = cut(name if len(name) <= MAX_QUOTED else f"{name[:MAX_QUOTED]}...")
    hint = ""
    for close in difflib.get_close_matches(name, [*names, *places], n=1, cutoff=0.5):
        hint = f"; did you mean '{close}'{'' if close in names else f' {places[close]}'}?"
    return (
        f"unknown {kind} '{name}'{hint} (known:"
        f" {', '.join(names) or 'none'}){'; ' + remedy if remedy else ''}"
    )


ESCAPE_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, the cursor, the screen
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # titles, links, the clipboard
    r"|\x1b[ -/]*[0-~]"
)
UNPRINTABLE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufffe\uffff\ud800-\udfff]"
)
"""Control characters except tab and line end, those that change the direction of writing, and those
not allowed in UTF-8 or XML."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


MAX_SHOWN = 20_000
"""Characters of one text in a report, more than the last lines of a log."""


def printable(text: str) -> str:
    """The text without escape sequences; other control characters are replaced."""
    return UNPRINTABLE.sub(REPLACEMENT, ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n")))


def in_report(text: str) -> str:
    """The printable text, cut to ``MAX_SHOWN`` characters."""
    shown = printable(text[: 2 * MAX_SHOWN])
    return (
        shown
        if len(text) <= MAX_SHOWN
        else f"{shown[:MAX_SHOWN]}… ({len(text):,} characters in all)"
    )
