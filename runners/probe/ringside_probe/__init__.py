"""Ringside's probe: in a user's script, unmodified, it counts and times optimizer steps and tells the driver.

Standard library only, Python 3.8 or later, any torch from 2.0. It imports nothing else of Ringside's, whose own
ranks take from it what they need alike. It may not break the script: what goes wrong in it ends it, and the driver hears of that.

``watching`` puts hooks into torch, and ``recorder`` counts and times what they see. ``rank`` talks to the driver: first steps are
compared (``reading``), then come ``blocks``. ``machine`` tells what else the process and its host do meanwhile.
"""

from __future__ import annotations


def begin() -> None:
    """Wait for torch to be imported, unless this process was started by a rank."""
    import sys

    from . import imports, settings

    found = settings.read()
    if found is None:
        return

    def watch() -> None:
        from . import watching  # only now: it imports what most processes of a launcher do not need

        watching.watch_torch(found)

    def watch_horovod() -> None:
        from .machine import library_threads

        library_threads.watch_horovod(sys.modules["horovod.common.basics"])

    imports.after_import({"torch": watch, "horovod.common.basics": watch_horovod})
