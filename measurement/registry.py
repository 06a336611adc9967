"""Names to classes, resolved lazily, so that unused ones need not be installed.

A reference is a registered name, an entry point of an installed package, ``package.module:Class``
or ``path/to/file.py:Class``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from measurement.agent.ringside_agent.reporting import message_of
from measurement.agent.ringside_agent.users_lines import at_line, place_of
from measurement.errors import PlanError, unknown_name
from measurement.own_packages import (
    name_of_file,
    pin,
)
from measurement.users_code import importing


@dataclass(frozen=True, kw_only=True)
class Registry:
    """One room's table of names to ``module:Class``; ``group`` is the entry-point group that adds
    to it.
    """

    kind: str
    group: str
    table: dict[str, str]
    otherwise: str = ""
    """What to do where a file has no such class."""

    def names(self) -> dict[str, str]:
        """Every known name with its reference; what the room itself registers wins over entry
        points.
        """
        installed = {
            point.name: point.value
            for point in entry_points(group=self.group)
            if point.name not in self.table
        }
        return self.table | installed

    def find(self, name: str) -> str | None:
        """The reference of a name; None where it is unknown.

        Entry points, which take time to read, come last.
        """
        return self.table.get(name) or self.names().get(name)

    def resolve(self, reference: str) -> type:
        """The class a reference names.

        Raises:
            PlanError: the name is unknown (the message has the closest one), or the module or class
                cannot be loaded.
        """
        if not isinstance(reference, str) or not reference:
            raise PlanError(f"a {self.kind} must be a name or 'module:Class', not {reference!r}")
        target = reference if ":" in reference else self.find(reference)
        if target is None and reference.endswith(".py"):
            raise PlanError(
                f"'{reference}' is a file; name a {self.kind} in it as '{reference}:Class', see"
                f" docs/extending.md{self.otherwise and '; ' + self.otherwise}"
            )
        if target is None:
            remedy = "or 'package.module:Class' or 'path/to/file.py:Class' for your own"
            raise PlanError(unknown_name(self.kind, reference, self.names(), remedy=remedy))
        module_name, _, class_name = target.rpartition(":")
        module = self._load(module_name, reference)
        cls = getattr(module, class_name, None)
        if not isinstance(cls, type):
            classes = [name for name, value in vars(module).items() if isinstance(value, type)]
            raise PlanError(
                unknown_name(f"class for {self.kind} '{reference}'", class_name, classes)
            )
        return cls

    def _load(self, module_name: str, reference: str) -> ModuleType:
        if module_name.endswith(".py"):
            return _load_file(Path(module_name), kind=self.kind)
        try:
            with importing():
                return importlib.import_module(module_name)
        except Exception as error:
            raise _cannot_load(f"{self.kind} '{reference}'", error) from error


def _load_file(path: Path, *, kind: str) -> ModuleType:
    """Import a user's file once per process, with its folder on the path as in ``python FILE``.

    Its name is the file's own, so that other processes can unpickle its classes; if that name is
    taken, one is made from its path.
    """
    if not path.is_file():
        raise PlanError(
            f"{kind} file '{path}' does not exist (looked in {Path.cwd()}); give a path to a .py"
            " file"
        )
    resolved = path.resolve()
    search_beside(resolved.parent)
    try:
        with importing():
            return importlib.import_module(
                resolved.stem if _is_own_name(resolved) else name_of_file(resolved)
            )
    except Exception as error:
        raise _cannot_load(f"{kind} file '{path}'", error) from error


def search_beside(folder: Path) -> None:
    """Put a folder first on Python's path, after our own packages."""
    pin()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()


def _is_own_name(path: Path) -> bool:
    """Whether importing the file's name gives the file, and not another module of that name."""
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        return getattr(loaded, "__file__", None) == str(path)
    spec = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
    return spec is not None and spec.origin == str(path)


def _cannot_load(what: str, error: Exception) -> PlanError:
    """The error for a failed import: what was raised, where in the user's code, and what to do."""
    remedy = (
        f"; install '{error.name}', or put it beside the file or in the folder that you start from"
        if isinstance(error, ModuleNotFoundError)
        else ""
    )
    message = f"{what} cannot be loaded: {message_of(error)}{remedy}"
    return PlanError(str(at_line(message, place_of(error))))
