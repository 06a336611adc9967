"""Names two arms by command: by their scripts, or by what differs between their commands. Pure."""

from __future__ import annotations

import re
from pathlib import PurePath

from runners.launchers.command_lines import CommandLine

MAX_CHARACTERS = 32
EITHER = ("a", "b")
"""Where the commands say nothing short."""
OPTION = re.compile(r"(?:^|(?<=\s))-*([^\s=]+)(?:=(\S+)|\s+(?!-)([^\s=]+)(?=\s|$))?")
"""A name with its value behind ``=``, or in the next word."""
FILE = re.compile(r"[^-].*\.(py|sh)")


def names_for(first: CommandLine, second: CommandLine) -> tuple[str, str]:
    """Return two names that differ and can be folders: ``train_hvd`` and ``train_ddp``, else ``bs8`` and ``bs16`` of ``--bs``.

    An option that only one of them has names that one, and the script the other.
    """
    scripts = name_of(first), name_of(second)
    if _differ(scripts):
        return scripts
    launchers = first.kind or "", second.kind or ""
    if _differ(launchers):
        return launchers
    named = _label(first, second) or scripts[0], _label(second, first) or scripts[1]
    return named if _differ(named) else EITHER


def _differ(names: tuple[str, str]) -> bool:
    return all(names) and names[0].lower() != names[1].lower()  # a filesystem may not tell capitals


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-._+")


def name_of(line: CommandLine) -> str:
    """Return the name of what it runs, without folder and ending; empty where nothing looks like a script."""
    module = next(
        (after for word, after in zip(line.words, line.words[1:], strict=False) if word == "-m" and "distributed" not in after), ""
    )
    file = line.file or module.replace(".", "/") or next(filter(FILE.fullmatch, line.words), "")
    return _plain(PurePath(file).stem)[:80]


def _label(own: CommandLine, other: CommandLine) -> str:
    """What only one of two commands says, as far as it is short."""
    label, known = "", OPTION.findall(" ".join(other.words))
    for name, joined, next_word in (one for one in OPTION.findall(" ".join(own.words)) if one not in known):
        value = joined or next_word
        short = PurePath(value).stem if "/" in value else value
        piece = _plain(PurePath(name).name + ("" if short[:1].isdigit() or not short else "-") + short)
        if label and len(label) + len(piece) >= MAX_CHARACTERS:
            break
        label = f"{label}-{piece}" if label else piece[:MAX_CHARACTERS].rstrip("-._+")
    return label
