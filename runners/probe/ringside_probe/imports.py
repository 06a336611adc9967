"""Runs something once a module has been imported. Until then each import of another module pays for one look into a dict."""

from __future__ import annotations

import sys
from typing import Any, Callable

from .reporting import guarded


def after_import(wanted: dict[str, Callable[[], None]]) -> None:
    """Call each function once its module has been imported, at once where it has been."""
    waiting = {}
    for name, then in wanted.items():
        if name in sys.modules:
            guarded(then)
        else:
            waiting[name] = then
    if waiting:
        sys.meta_path.insert(0, Finder(waiting))


class Finder:
    """Finds nothing itself. It has the others find, and sees to it that a function is called after the module was run."""

    def __init__(self, waiting: dict[str, Callable[[], None]]) -> None:
        self._waiting = waiting

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As the import system calls it."""
        if name not in self._waiting:
            return None
        for finder in [one for one in sys.meta_path if one is not self]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                follow(spec, self._waiting.pop(name))
                if not self._waiting:
                    sys.meta_path.remove(self)
                return spec
        return None  # it is not there: a script may try again, with another path


def follow(spec: Any, then: Callable[[], None]) -> None:
    """Have a function called after a spec's module was run."""
    loader = spec.loader
    run = getattr(loader, "exec_module", None)
    if run is None:
        return

    def exec_module(module: Any) -> None:
        run(module)
        guarded(then)

    loader.exec_module = exec_module
