"""Passes variables on to the ranks of launchers that do not do so by themselves. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from runners.launchers.command_lines import MPIRUN, SRUN, CommandLine, ParsedLauncher, set_flag


def with_variables(
    line: CommandLine, names: Iterable[str], *, is_open_mpi: bool = True
) -> tuple[str, ...]:
    """Return the words of a command that passes these variables on.

    ``is_open_mpi``: whether its ``mpirun`` is Open MPI's.
    """
    words, names = list(line.words), list(names)
    for launcher in reversed(line.launchers):
        if launcher.kind == SRUN:
            _export(words, launcher, names)
        elif launcher.kind == MPIRUN and is_open_mpi:
            passed = {
                word.partition("=")[0] for flag, word in itertools.pairwise(words) if flag == "-x"
            }
            words[launcher.flags_at : launcher.flags_at] = [
                word for name in names if name not in passed for word in ("-x", name)
            ]
        elif launcher.kind == MPIRUN:
            _list_for_hydra(words, launcher, names)
    return tuple(words)


def _export(words: list[str], launcher: ParsedLauncher, names: list[str]) -> None:
    """An srun passes its whole environment on, unless ``--export`` lists variables."""
    exported = launcher.value("export")
    if exported is None or "ALL" in exported.split(","):
        return
    variables = [] if exported == "NONE" else [exported]
    set_flag(words, launcher, "export", ",".join([*variables, *names]))


def _list_for_hydra(words: list[str], launcher: ParsedLauncher, names: list[str]) -> None:
    """MPICH's passes its whole environment on, unless a flag lists variables."""
    for flag in ("genvlist", "envlist"):
        if flag in launcher.flags:
            set_flag(
                words, launcher, flag, ",".join(filter(None, [launcher.flags[flag][1], *names]))
            )
            return
    if "genvnone" in launcher.flags or "envnone" in launcher.flags:
        words[launcher.flags_at : launcher.flags_at] = ["-genvlist", ",".join(names)]
