"""Finds the Python that ran a command and lacks a module, and another one that has it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from runners.launchers.command_lines import PYTHON_NAME, TORCHRUN, command_of

MISSING = re.compile(r"No module named '?(\w+)")
PACKAGES = ("lib/python3*/site-packages", "lib/python3*/dist-packages")


def lacking_module(log: str, words: Sequence[str], path: str) -> str | None:
    """Say what to do about a missing module, by a launcher's log; None: no module is missing.

    ``words``: the command. ``path``: its PATH.
    """
    missing = MISSING.search(log)
    if missing is None:
        return None
    module, python = missing[1], python_of(words, path)
    ran = f"{python} ran it, which" if python else "the Python that it runs"
    folders = dict.fromkeys(
        Path(folder) for folder in (*path.split(os.pathsep), str(Path(sys.executable).parent))
    )
    others = (
        folder / name
        for folder in folders
        if python is None or folder != python.parent
        for name in ("python", "python3")
    )
    has_it = next((other for other in others if other.is_file() and _has(other, module)), None)
    if has_it:
        return (
            f"{ran} has no {module}; {has_it} has it: --python-a or --python-b {has_it}, or"
            " --python for both"
        )
    return (
        f"{ran} has no {module}; activate the right environment, or name its Python: --python-a,"
        " --python-b, or --python for both"
    )


def python_of(words: Sequence[str], path: str) -> Path | None:
    """Return the Python that runs the script of a command; None if another program chooses it."""
    line = command_of(words)
    torchrun = line.find(TORCHRUN)
    at = line.python if line.python is not None else torchrun.program_at if torchrun else None
    program = (
        None
        if at is None or line.words[at] not in line.programs
        else shutil.which(line.words[at], path=path)
    )
    if program is None:
        return None
    return (
        Path(program)
        if PYTHON_NAME.fullmatch(Path(program).name)
        else Path(program).with_name("python")
    )


def _has(python: Path, module: str) -> bool:
    """Whether a module or package is installed beside a Python, which is not started."""
    folders = [folder for pattern in PACKAGES for folder in python.parent.parent.glob(pattern)]
    return any(
        (folder / module).is_dir() or (folder / f"{module}.py").is_file() for folder in folders
    )
