"""Reads what a launcher's log holds of a script that failed: the script's own exception, among what launchers say of it. Pure."""

from __future__ import annotations

import re

from measurement.agent.ringside_agent.users_lines import Described, Place, at_line, place_in

OPEN_MPIS = re.compile(r"(?<=.)\[\d+,\d+\]<std(out|err)>:")
"""What Open MPI puts between the pieces of a line that are written one by one."""
PREFIX = re.compile(r"((\[[\d,]+\](<std(out|err)>:| ?)|\d+: )?(\[(rank|default)\d+\]: ?)*)")
"""What horovodrun, mpirun --tag-output, srun --label, torchrun --tee and torch itself put before each line."""
BEGINNING = "Traceback (most recent call last)"
CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
LAUNCHERS_ERROR = re.compile(
    r"\S*(ChildFailedError|ProcessRaisedException|ProcessExitedException|CalledProcessError|SignalException)\b"
    r"|RuntimeError: Horovod detected that one or more processes"
)
"""What a launcher raises where a process of it has failed."""
LAUNCHERS_LINE = re.compile(r"torch/distributed/(run|elastic/\S+)\.py:\d+\]|Horovod detected that one or more processes")
INSTALLED = re.compile(r'^\s*File "[^"]*/(site-packages|dist-packages|lib/python3[.\d]*)/.*$', re.MULTILINE)


def first_traceback(log: str) -> list[str]:
    """Return the lines of the first Python traceback that is the script's own; of a chain, the last. None: no lines."""
    found: list[tuple[str, list[str]]] = []
    open_in: dict[str, list[str]] = {}
    chained: set[str] = set()
    for prefix, line in _lines(log):
        if line.startswith(BEGINNING):
            if prefix in chained:
                found.remove(next(one for one in reversed(found) if one[0] == prefix))
                chained.remove(prefix)
            open_in[prefix] = []
            found.append((prefix, open_in[prefix]))
        elif prefix in open_in:
            open_in[prefix].append(line)
            if not line.startswith(" "):
                del open_in[prefix]
        elif line.startswith(CHAINED):
            chained.add(prefix)
    return next((lines for _, lines in found if lines and not LAUNCHERS_ERROR.match(lines[-1])), [])


def scripts_exception(log: str) -> Described | None:
    """Return what the script raised, with its line and those around; None where it raised nothing."""
    lines = first_traceback(log)
    if not lines:
        return None
    found = at_line(lines[-1], _place(lines))
    return found if found.excerpt else Described(found.message, lines)


def own_lines(log: str) -> list[str]:
    """Return the lines of a log without those in which launchers tell that a process has failed."""
    kept = []
    for _, line in _lines(log):
        if line.startswith(BEGINNING):
            break  # a launcher's, where the script has none
        kept += [line] if re.search(r"\w", line) and not LAUNCHERS_LINE.search(line) else []
    return kept


def _place(lines: list[str]) -> Place | None:
    return place_in(INSTALLED.sub("", "\n".join(lines)))


def _lines(log: str) -> list[tuple[str, str]]:
    """Each line, apart from what stands before it."""
    texts = [OPEN_MPIS.sub("", line) for line in log.splitlines()]
    return [(found[0].strip(), text[found.end() :]) for text in texts if (found := PREFIX.match(text))]
