"""Finds the files that a plan names (``mine.py:Mine``) beside the plan, or in the working directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measurement.errors import PlanError

KINDS = ("workload", "backend", "launcher")
"""Keys whose values are references, in the plan, in its arms and at its points."""


def placed_beside(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A plan's plain values with its files as they are found: beside the plan, in ``folder``, then in the working directory.

    A plan in the working directory stays as it is. Otherwise a file beside the plan is named by its absolute path, which ranks on
    other hosts find, too, where they find the working directory.

    Raises:
        PlanError: a file is in neither folder.
    """
    found = {key: _placed(value, key, folder) for key, value in content.items()}
    for section in ("arms", "points"):
        if isinstance(found.get(section), Mapping):
            parts = found[section].items()
            found[section] = {name: placed_beside(part, folder) if isinstance(part, Mapping) else part for name, part in parts}
    if isinstance(found.get("reports"), list):
        found["reports"] = [_placed(one, "report", folder, kinds=("report",)) for one in found["reports"]]
    return found


def _placed(value: Any, key: str, folder: Path, *, kinds: tuple[str, ...] = KINDS) -> Any:
    if key not in kinds or not isinstance(value, str) or ":" not in value:
        return value
    module, _, name = value.rpartition(":")
    path = Path(module if module.endswith(".py") else f"{module}.py")
    if path.is_absolute() or folder.resolve() == Path.cwd():
        return value
    if (folder / path).is_file():
        return f"{(folder / path).resolve()}:{name}"
    if module.endswith(".py") and not path.is_file():
        raise PlanError(
            f"{key} file '{path}' does not exist, neither beside the plan ({folder.resolve()}) nor in the working directory "
            f"({Path.cwd()}); give its path from one of them"
        )
    return value
