"""The errors a user may see. Every message says what was wrong, the value seen, what is accepted and what to do."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

TWO_SCRIPTS = "to compare two scripts as they are: ringside ab 'COMMAND' 'COMMAND'"
"""Said where a script is given and a plan or a workload is wanted."""


class RingsideError(Exception):
    """Base of all errors that are the user's to fix; the command line prints them as one message and exits with 2."""

    was_reported = False
    """Whether it was printed already, by a rank that had to before it could end."""


@contextmanager
def about(what: str) -> Iterator[None]:
    """A context in which messages of errors begin with what they are about, such as ``arm 'a'``."""
    try:
        yield
    except RingsideError as error:
        error.args = (str(error) if str(error).startswith(f"{what}: ") else f"{what}: {error}",)
        raise


class PlanError(RingsideError):
    """A plan, or an option given on the command line, cannot be run as written."""


class UnavailableError(PlanError):
    """An arm needs what this machine lacks; other arms of the plan may run."""

    def __init__(self, message: str, *, lack: str = "") -> None:
        super().__init__(message)
        self.lack = lack
        """In a few words, such as ``'mpirun' is not installed``."""


class HostfileError(RingsideError):
    """A hostfile, or a list of hosts, cannot be read as written, or has too few slots."""


class LaunchError(RingsideError):
    """The processes of an arm could not be started or did not report."""


class WorldSizeMismatchError(RingsideError):
    """The library counts other ranks than were asked for: usually the wrong launcher for the backend."""


class ParityError(RingsideError):
    """An arm computes other gradients, parameters or samples than it must."""


class RecordError(RingsideError):
    """A results folder is missing, damaged, or of another plan or version."""


class ReportError(RingsideError):
    """A report could not be sent to where it is to be seen; what was measured is on disk, and so are the other reports."""


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
    """A value as a message repeats it: what is long, or deep, is cut."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # a number of more digits than Python writes
        text = "a number of thousands of digits"
    return cut(text)


def cut(text: str) -> str:
    """The text on one line, its end left out where it is long."""
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= 3 * MAX_QUOTED else f"{flat[: 3 * MAX_QUOTED]}..."


MAX_LISTED = 450
"""Characters of a list in a message; one part may be longer."""


def joined(parts: Sequence[str]) -> str:
    """The parts as a list, as many as a message has room for, and how many more there are."""
    shown = [part for index, part in enumerate(parts) if sum(map(len, parts[: index + 1])) <= MAX_LISTED] or list(parts[:1])
    more = f"; and {len(parts) - len(shown)} more" if len(shown) < len(parts) else ""
    return "; ".join(shown) + more


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant: the one spelled most alike."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)), None)


def unknown_name(
    kind: str, name: str, known: Iterable[str], *, remedy: str = "", elsewhere: Mapping[str, str] | None = None
) -> str:
    """The message for a name that is not on a list: the closest one first, then all of them.

    ``elsewhere``: names that are known in another place, with the place, such as ``under 'measurement'``.
    """
    names, places = sorted(known), elsewhere or {}
    name = cut(name if len(name) <= MAX_QUOTED else f"{name[:MAX_QUOTED]}...")
    close = closest(name, dict.fromkeys([*names, *places]))
    hint = f"; did you mean '{close}'{'' if close in names else f' {places[close]}'}?" if close else ""
    return f"unknown {kind} '{name}'{hint} (known: {', '.join(names) or 'none'}){'; ' + remedy if remedy else ''}"


SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, the cursor, the screen
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # titles, links, the clipboard
    r"|\x1b[ -/]*[0-~]"
)
UNSEEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufffe\uffff\ud800-\udfff]"
)
"""Control characters but tab and line end, those that turn the direction of writing, and what no file in UTF-8 or XML may hold."""
LEFT = "\N{REPLACEMENT CHARACTER}"


MAX_SHOWN = 20_000
"""Characters of one text in a report: more than the last lines of a log have."""


def printable(text: str) -> str:
    """The text without what a terminal would obey: escape sequences are left out, other such characters replaced."""
    return UNSEEN.sub(LEFT, SEQUENCE.sub("", text.replace("\r\n", "\n")))


def in_report(text: str) -> str:
    """The printable text, cut where it is longer than anybody reads."""
    shown = printable(text[: 2 * MAX_SHOWN])
    return shown if len(text) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}… ({len(text):,} characters in all)"
