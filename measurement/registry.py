"""Names to classes, resolved lazily, so that what is not used need not be installed.

A reference is a registered name, an entry point of an installed package, ``package.module:Class`` or ``path/to/file.py:Class``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from measurement.errors import PlanError, unknown_name


@dataclass(frozen=True, kw_only=True)
class Registry:
    """One room's table of names to ``module:Class``; ``group`` is the entry-point group that adds to it."""

    kind: str
    group: str
    table: dict[str, str]

    def names(self) -> dict[str, str]:
        """Every known name with its reference; what the room itself registers wins over entry points."""
        installed = {point.name: point.value for point in entry_points(group=self.group) if point.name not in self.table}
        return self.table | installed

    def resolve(self, reference: str) -> type:
        """The class a reference names.

        Raises:
            PlanError: the name is unknown (the closest one is told), or the module or class cannot be loaded.
        """
        if not isinstance(reference, str) or not reference:
            raise PlanError(f"a {self.kind} must be a name or 'module:Class', not {reference!r}")
        target = reference if ":" in reference else self.names().get(reference)
        if target is None:
            remedy = "or 'package.module:Class' or 'path/to/file.py:Class' for your own"
            raise PlanError(unknown_name(self.kind, reference, self.names(), remedy=remedy))
        module_name, _, class_name = target.rpartition(":")
        module = self._load(module_name, reference)
        found = getattr(module, class_name, None)
        if not isinstance(found, type):
            classes = [name for name, value in vars(module).items() if isinstance(value, type)]
            raise PlanError(unknown_name(f"class for {self.kind} '{reference}'", class_name, classes))
        return found

    def _load(self, module_name: str, reference: str) -> ModuleType:
        if module_name.endswith(".py"):
            return _load_file(Path(module_name), kind=self.kind)
        try:
            return importlib.import_module(module_name)
        except ImportError as error:
            raise PlanError(
                f"{self.kind} '{reference}' cannot be loaded: {error}; see 'ringside doctor' for what is missing, "
                f"or check that '{module_name}' can be imported from here"
            ) from error


def _load_file(path: Path, *, kind: str) -> ModuleType:
    """Import a user's file under a name made from its path, once per process."""
    if not path.is_file():
        raise PlanError(f"{kind} file '{path}' does not exist (looked in {Path.cwd()}); give a path to a .py file")
    resolved = path.resolve()
    name = f"ringside_plugin_{resolved.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise PlanError(f"{kind} file '{path}' is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise PlanError(f"{kind} file '{path}' cannot be loaded: {type(error).__name__}: {error}") from error
    return module
