"""Names two arms by command: by their scripts, or by what differs between their commands. Pure."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import PurePath

from runners.launchers.command_lines import CommandLine

MAX_CHARACTERS = 32
EITHER = ("a", "b")
"""If the commands give no short names."""
OPTION = re.compile(r"(?:^|(?<=\s))-*([^\s=]+)(?:=(\S+)|\s+(?!-)([^\s=]+)(?=\s|$))?")
"""A name with its value after ``=``, or in the next word."""
FILE = re.compile(r"[^-].*\.(py|sh)")


def names_for(first: CommandLine, second: CommandLine) -> tuple[str, str]:
    """Return two names that differ and can be folders: ``train_hvd`` and ``train_ddp``, else
    ``bs8`` and ``bs16`` of ``--bs``.

    If only one of them has an option, it is named after the option, and the other after the script.
    """
    scripts = name_of(first), name_of(second)
    launchers = first.kind or "", second.kind or ""
    labels = _label(first, second) or scripts[0], _label(second, first) or scripts[1]
    return next(filter(_differ, (scripts, launchers, labels)), EITHER)


def _differ(names: tuple[str, str]) -> bool:
    return all(names) and names[0].lower() != names[1].lower()  # a filesystem may ignore case


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-._+")


def name_of(line: CommandLine) -> str:
    """Return the name of its script or module, without folder and suffix; empty if it has none."""
    module = next(
        (
            after
            for word, after in pairwise(line.words)
            if word == "-m" and "distributed" not in after
        ),
        "",
    )
    file = line.file or module.replace(".", "/") or next(filter(FILE.fullmatch, line.words), "")
    return _plain(PurePath(file).stem)[:80]


def _label(line: CommandLine, other: CommandLine) -> str:
    """The options that only the first of two commands has, as a short name."""
    others, pieces = OPTION.findall(" ".join(other.words)), []
    for option in OPTION.findall(" ".join(line.words)):
        if option not in others:
            name, value = (text.rpartition("/")[2] for text in (option[0], option[1] or option[2]))
            pieces.append(name + ("-" if value and not value[0].isdigit() else "") + value)
    return _plain("-".join(pieces))[:MAX_CHARACTERS].rstrip("-._+")
