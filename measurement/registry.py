"""Classes by name, found when they are needed, and our packages before a user's of the same name.

A reference is a registered name, an entry point of an installed package, ``package.module:Class``
or ``path/to/file.py:Class``. So what is not used need not be installed. Python looks into the
current folder, that of the workload's file and PYTHONPATH first, and a user may have a
``workloads.py``, a ``reports/`` or a ``runners.py`` there.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from measurement.agent.ringside_agent import users_lines
from measurement.agent.ringside_agent.reporting import message_of
from measurement.agent.ringside_agent.users_lines import ROOMS, Place, at_line, is_users, place_of
from measurement.errors import PlanError, unknown_name


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

        Entry points, which take time to read, are read last.
        """
        return self.table.get(name) or self.names().get(name)

    def resolve(self, reference: str) -> type:
        """The class a reference names.

        Raises:
            PlanError: the name is unknown (the message has the closest one), or the module or class
                cannot be loaded.
        """
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


MAIN_GUARD = """put what runs as a program under 'if __name__ == "__main__":'"""


IMPORT_LOCK = threading.RLock()
"""Threads that start commands on several hosts import launchers at once: one must not restore what
another has replaced."""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A context in which a module is imported, by one thread at a time; ``sys.argv`` has no
    arguments.

    Raises:
        RuntimeError: it reads Ringside's command line by ``parse_args()``, or ends the program.
    """
    with IMPORT_LOCK:
        read, arguments = argparse.ArgumentParser.parse_known_args, sys.argv

        def parse(parser: Any, args: Any = None, *more: Any, **named: Any) -> Any:
            if args is None:
                raise RuntimeError(
                    "it calls parse_args() when imported, and the command line is ringside's;"
                    f" {MAIN_GUARD}"
                )
            return read(parser, args, *more, **named)

        sys.argv = arguments[:1]
        setattr(argparse.ArgumentParser, "parse_known_args", parse)  # noqa: B010 - mypy takes no assignment to a method
        try:
            yield
        except SystemExit as ended:
            raise RuntimeError(
                f"it ends the program when imported, by sys.exit({ended.code!r}); {MAIN_GUARD}"
            ) from ended
        finally:
            sys.argv = arguments
            setattr(argparse.ArgumentParser, "parse_known_args", read)  # noqa: B010


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
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    return {
        name: file for folder in folders if folder for name, file in clashes(Path(folder)).items()
    }


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


def place_of_definition(thing: object) -> Place | None:
    """Where a user's class or function is defined; None if it is not a user's, or not in a file."""
    try:
        file = inspect.getsourcefile(thing)  # type: ignore[arg-type]
        _, line = inspect.getsourcelines(thing)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    return Place(file, line) if file and is_users(file) else None


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
    modules = list(sys.modules.values())
    loaded = (Path(file).resolve() for m in modules if (file := getattr(m, "__file__", None)))
    return {
        str(path.relative_to(root)): path
        for path in sorted({defined_in, *loaded})
        if path.suffix == ".py" and path.is_relative_to(root) and is_users(path)
    }


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
