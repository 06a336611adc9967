"""Says which Python ran a command that lacked a module, and which other one has it."""

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
    """Say what to do about a module that a launcher's log says is not there; None: it says nothing of the sort.

    ``words``: the command. ``path``: its PATH.
    """
    found = MISSING.search(log)
    if found is None:
        return None
    module, python = found[1], python_of(words, path)
    ran = f"{python} ran it, which" if python else "the Python that it runs"
    others = [other for other in _pythons(path) if python is None or other.parent != python.parent]
    has_it = next((other for other in others if _has(other, module)), None)
    if has_it:
        return f"{ran} has no {module}; {has_it} has it: --python-a or --python-b {has_it}, or --python for both"
    return (
        f"{ran} has no {module}; activate the right environment, or name its Python: --python-a, --python-b, or --python for both"
    )


def python_of(words: Sequence[str], path: str) -> Path | None:
    """Return the Python that runs the script of a command; None where only another program knows."""
    line = command_of(words)
    torchrun = line.find(TORCHRUN)
    at = line.python if line.python is not None else torchrun.program_at if torchrun else None
    found = None if at is None or line.words[at] not in line.programs else shutil.which(line.words[at], path=path)
    if found is None:
        return None
    return Path(found) if PYTHON_NAME.fullmatch(Path(found).name) else Path(found).with_name("python")


def _pythons(path: str) -> list[Path]:
    folders = [*path.split(os.pathsep), str(Path(sys.executable).parent)]
    known = (Path(folder, name) for folder in dict.fromkeys(folders) for name in ("python", "python3"))
    return [python for python in known if python.is_file()]


def _has(python: Path, module: str) -> bool:
    """Whether a module or package lies among those that are installed beside a Python, which is not started."""
    folders = [folder for pattern in PACKAGES for folder in python.parent.parent.glob(pattern)]
    return any((folder / module).is_dir() or (folder / f"{module}.py").is_file() for folder in folders)
