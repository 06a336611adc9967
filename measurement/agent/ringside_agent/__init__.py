"""Ringside's agent: in a user's script, unmodified, it counts and times optimizer steps and reports
to the driver.

Standard library only, Python 3.8 or later, any torch from 2.0. It imports nothing else of Ringside,
but that a supervisor reads the host's counters by ``measurement.host_counters``, if it can.
Ringside's own ranks use parts of it, too. It must not break the script: an error in the agent ends
the agent, and is reported.

``meeting`` keeps the ports and files of each start apart. ``settings`` has what the driver set,
some in place of the script's own. ``watching`` puts hooks into torch, and ``recorder`` counts and
times what they see. ``rank`` does as the driver says, to whom ``agent`` talks: first steps are
compared (``reading``), then come blocks. ``machine`` reads what else the process and its host do
meanwhile.
"""

from __future__ import annotations

import atexit
import os
import sys
from functools import partial
from typing import Any, Callable

from . import meeting, settings
from .reporting import call_safely, run_at_exit
from .settings import impose_on_torch, impose_variables


def begin() -> None:
    """Set up the sandbox and the ports of the start, and hook torch once it is imported, unless a
    rank started this process.
    """
    agent_settings = settings.read(in_children=True)
    if agent_settings is None:
        return
    impose_variables(agent_settings.impose)
    if agent_settings.sandbox:
        from . import sandbox

        box = sandbox.enter(
            agent_settings.sandbox,
            os.path.dirname(agent_settings.key_file),
            *filter(None, [agent_settings.state_file]),
        )
        after_import({name: partial(box.wrap, name, save) for name, save in sandbox.SAVE.items()})
    if agent_settings.cpu:
        from . import cpus_for_gpus

        after_import(
            {
                "torch": lambda: cpus_for_gpus.emulate_cuda(
                    sys.modules["torch"], agent_settings.rank_variables
                ),
                "horovod.torch": lambda: cpus_for_gpus.emulate_horovod_build(
                    sys.modules["horovod.torch"]
                ),
            }
        )
    places = meeting.Meeting(agent_settings)
    if settings.read() is None:
        after_import({"socket": places.watch_sockets, "torch": places.watch_stores})
        return
    atexit.register(run_at_exit)  # before the script registers anything, so it runs last

    def watch() -> None:
        from . import watching  # only now: it imports what most processes of a launcher do not need

        impose_on_torch(sys.modules["torch"], agent_settings.impose)
        watching.watch_torch(agent_settings)
        call_safely(places.watch_stores)

    def watch_horovod() -> None:
        from .machine import counting_threads

        basics: Any = sys.modules["horovod.common.basics"].HorovodBasics
        basics.init = counting_threads(basics.init)

    after_import(
        {"socket": places.watch_sockets, "torch": watch, "horovod.common.basics": watch_horovod}
    )


def after_import(functions: dict[str, Callable[[], None]]) -> None:
    """Call each function once its module has been imported, at once where it has been."""
    waiting = {}
    for name, then in functions.items():
        if name in sys.modules:
            call_safely(then)
        else:
            waiting[name] = then
    if waiting:
        sys.meta_path.insert(0, Finder(waiting))


class Finder:
    """Finds modules by the other finders, and calls a function after such a module has run."""

    def __init__(self, waiting: dict[str, Callable[[], None]]) -> None:
        self._waiting = waiting
        self._asked: set[str] = set()
        """Modules being looked up: another finder of this kind may call this one."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As the import system calls it, and ``importlib.util.find_spec``, after which nothing is
        imported.
        """
        if name not in self._waiting or name in self._asked:
            return None
        self._asked.add(name)
        try:
            for finder in [other for other in sys.meta_path if other is not self]:
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None else None
                if spec is not None:
                    self._follow(spec, name)
                    return spec
        finally:
            self._asked.discard(name)
        return None  # not found: a script may try again with another path

    def _follow(self, spec: Any, name: str) -> None:
        """Call the function after the spec's module has run."""
        run = getattr(spec.loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: Any) -> None:
            run(module)
            then = self._waiting.pop(name, None)
            if then is not None:
                call_safely(then)
            if not self._waiting and self in sys.meta_path:
                sys.meta_path.remove(self)

        spec.loader.exec_module = exec_module
