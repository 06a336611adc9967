"""Finds the exception of a script that failed in its launcher's log, among the launcher's messages.

Pure.
"""

from __future__ import annotations

import re

from measurement.agent.ringside_agent.users_lines import Described, at_line, place_in

OPEN_MPIS = re.compile(r"(?<=.)\[\d+,\d+\]<std(out|err)>:")
"""Inserted by Open MPI between pieces of a line that are written separately."""
PREFIX = re.compile(r"((\[[\d,]+\](<std(out|err)>:| ?)|\d+: )?(\[(rank|default)\d+\]: ?)*)")
"""Prefix of each line by horovodrun, mpirun --tag-output, srun --label, torchrun --tee and torch
itself."""
BEGINNING = "Traceback (most recent call last)"
LAUNCHERS_ERROR = re.compile(
    r"\S*(ChildFailedError|ProcessRaisedException|ProcessExitedException|CalledProcessError|SignalException)\b"
    r"|RuntimeError: Horovod detected that one or more processes"
)
"""Exceptions of launchers whose process has failed."""
LAUNCHERS_LINE = re.compile(
    r"torch/distributed/(run|elastic/\S+)\.py:\d+\]|Horovod detected that one or more processes"
)
INSTALLED = re.compile(
    r'^\s*File "[^"]*/(site-packages|dist-packages|lib/python3[.\d]*)/.*$', re.MULTILINE
)


def first_traceback(log: str) -> list[str]:
    """Return the lines of the first Python traceback of the script; of a chain, the cause.

    Empty if there is none.
    """
    tracebacks: list[list[str]] = []
    open_in: dict[str, list[str]] = {}
    for prefix, line in _lines(log):
        if line.startswith(BEGINNING):
            open_in[prefix] = []
            tracebacks.append(open_in[prefix])
        elif prefix in open_in:
            open_in[prefix].append(line)
            if not line.startswith(" "):
                del open_in[prefix]
    of_script = [lines for lines in tracebacks if lines and not LAUNCHERS_ERROR.match(lines[-1])]
    # ranks that write at once cut each other's off
    return min(of_script, key=lambda lines: lines[-1].startswith(" "), default=[])


def scripts_exception(log: str) -> Described | None:
    """Return the script's exception, with its line and those around it; None if it raised
    nothing.
    """
    lines = first_traceback(log)
    if not lines:
        return None
    described = at_line(lines[-1], place_in(INSTALLED.sub("", "\n".join(lines))))
    return described if described.excerpt else Described(described.message, lines)


def lines_of_script(log: str) -> list[str]:
    """Return the lines of a log without launchers' messages about failed processes."""
    kept = []
    for _, line in _lines(log):
        if line.startswith(BEGINNING):
            break  # a launcher's, since the script has none
        kept += [line] if re.search(r"\w", line) and not LAUNCHERS_LINE.search(line) else []
    return kept


def _lines(log: str) -> list[tuple[str, str]]:
    """Each line as prefix and text."""
    texts = [OPEN_MPIS.sub("", line) for line in log.splitlines()]
    return [
        (match[0].strip(), text[match.end() :]) for text in texts if (match := PREFIX.match(text))
    ]
