"""Makes imports of our packages find ours: a user's folder may have a ``workloads.py``, a
``reports/`` or a ``runners.py``.

Python looks into the current folder, that of the workload's file and PYTHONPATH first, and would
import those instead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from measurement.agent.ringside_agent import users_lines
from measurement.agent.ringside_agent.users_lines import ROOMS
from measurement.errors import PlanError

HOUSE = Path(users_lines.HOUSE).resolve()

PLUGIN_PREFIX = "ringside_plugin_"


class OwnPackages:
    """Finds our packages in this installation, and a user's file whose name is taken as
    ``name_of_file``.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG004 - as finders are called
        """Return where a module is; None: other finders are asked."""
        if path is None and name in ROOMS:
            return PathFinder.find_spec(name, [str(HOUSE)])
        if not name.startswith(PLUGIN_PREFIX):
            return None
        files = (file.resolve() for folder in sys.path for file in Path(folder).glob("*.py"))
        file = next((file for file in files if name_of_file(file) == name), None)
        return None if file is None else importlib.util.spec_from_file_location(name, file)


def pin() -> None:
    """Have Python ask ``OwnPackages`` before anything else."""
    if OwnPackages not in sys.meta_path:
        sys.meta_path.insert(0, OwnPackages)


def name_of_file(file: Path) -> str:
    """Return a module name made from a file's path, the same in every process."""
    stem = re.sub(r"\W", "_", file.stem)
    return f"{PLUGIN_PREFIX}{stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"


def clashes(folder: Path) -> dict[str, Path]:
    """Return the modules in a folder that have the name of one of our packages."""
    if folder.resolve() == HOUSE:
        return {}
    specs = {name: PathFinder.find_spec(name, [str(folder)]) for name in ROOMS}
    return {
        name: Path(spec.origin) for name, spec in specs.items() if spec is not None and spec.origin
    }


def on_python_path(environment: Mapping[str, str]) -> dict[str, Path]:
    """Return the clashes in the folders of PYTHONPATH."""
    folders = [
        Path(folder) for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder
    ]
    return {name: file for folder in folders for name, file in clashes(folder).items()}


def require_own_runners(environment: Mapping[str, str]) -> None:
    """Refuse a PYTHONPATH on which ranks would find another ``runners``, before our code can run in
    them.

    Raises:
        PlanError: with the file.
    """
    file = on_python_path(environment).get("runners")
    if file is not None:
        raise PlanError(
            f"'{file}' is on PYTHONPATH, and Python would import it in the place of our package"
            " 'runners'; rename it"
        )


def digest() -> str:
    """A digest of Ringside's own files, to compare installations."""
    files_digest = hashlib.sha256()
    for file in sorted(file for name in ROOMS for file in (HOUSE / name).rglob("*.py")):
        files_digest.update(f"{file.relative_to(HOUSE)}\0".encode() + file.read_bytes() + b"\0")
    return files_digest.hexdigest()[:16]
