"""Writes commands as a person would paste them into a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence


def shell_line(command: str, *, environment: Mapping[str, str], path: str, start: Sequence[str] = (), host: str = "") -> str:
    """Return a line that runs a command like an arm's launcher does.

    Args:
        command: as typed in a shell.
        environment: variables that it needs besides those of the user's shell.
        path: its PATH. Only the first folder is named, where the user's PATH does not begin with it.
        start: commands to type before, by which one is where it starts.
        host: where to type it; empty: here.
    """
    first = path.split(os.pathsep)[0]
    needs_path = first != os.environ.get("PATH", "").split(os.pathsep)[0]
    words = [f'PATH={shlex.quote(first)}:"$PATH"'] if needs_path else []
    words += [f"{name}={shlex.quote(value)}" for name, value in environment.items() if name != "PATH"]
    return " && ".join([*start, " ".join([*words, command])]) + (f"  # on {host}" if host else "")
