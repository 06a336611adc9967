"""The source files of a user's class: its own, and those that it imports from the same folder.

Packages have versions instead.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from measurement.agent.ringside_agent.users_lines import is_users


def sources_of(cls: type) -> dict[str, Path]:
    """The files by name, relative to the folder of the class's file or package; none if the class
    is ours or installed.
    """
    try:
        defined_in = Path(inspect.getfile(cls)).resolve()
    except (OSError, TypeError):
        return {}
    if not is_users(defined_in):
        return {}
    depth = cls.__module__.count(".")
    root = defined_in.parents[depth]
    loaded = {
        Path(file).resolve()
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None))
    }
    files = sorted(
        path
        for path in {defined_in, *loaded}
        if path.suffix == ".py" and path.is_relative_to(root) and is_users(path)
    )
    return {str(path.relative_to(root)): path for path in files}


def sources_of_all(classes: Iterable[type]) -> dict[str, Path]:
    """The files of several classes by name.

    Where two have the same name, the later one's begins with its class's name.
    """
    files: dict[str, Path] = {}
    for cls in classes:
        for name, path in sources_of(cls).items():
            files[name if files.get(name, path) == path else f"{cls.__name__}/{name}"] = path
    return files


def digests(files: Mapping[str, Path]) -> dict[str, str]:
    """The first 16 hexadecimal digits of each file's SHA-256."""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in files.items()
    }
