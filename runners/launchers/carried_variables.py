"""Carries variables to the ranks of every launcher that would not hand them on by itself. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from runners.launchers.command_lines import MPIRUN, SRUN, CommandLine, ParsedLauncher, set_flag


def with_variables(line: CommandLine, names: Iterable[str], *, is_open_mpi: bool = True) -> tuple[str, ...]:
    """Return the words of a command that hands these variables on. ``is_open_mpi``: whether its ``mpirun`` is, or MPICH's."""
    words, names = list(line.words), list(names)
    for one in reversed(line.launchers):
        if one.kind == SRUN:
            _export(words, one, names)
        elif one.kind == MPIRUN and is_open_mpi:
            has = {word.partition("=")[0] for before, word in itertools.pairwise(words) if before == "-x"}
            words[one.at : one.at] = [part for name in names if name not in has for part in ("-x", name)]
        elif one.kind == MPIRUN:
            _list_for_hydra(words, one, names)
    return tuple(words)


def _export(words: list[str], one: ParsedLauncher, names: list[str]) -> None:
    """An srun carries its environment unless ``--export`` says what."""
    given = one.value("export")
    if given is None or "ALL" in given.split(","):
        return
    kept = [] if given == "NONE" else [given]
    set_flag(words, one, "export", ",".join([*kept, *names]))


def _list_for_hydra(words: list[str], one: ParsedLauncher, names: list[str]) -> None:
    """MPICH's carries its environment unless a list says what."""
    for flag in ("genvlist", "envlist"):
        if flag in one.flags:
            set_flag(words, one, flag, ",".join(filter(None, [one.flags[flag][1], *names])))
            return
    if "genvnone" in one.flags or "envnone" in one.flags:
        words[one.at : one.at] = ["-genvlist", ",".join(names)]
