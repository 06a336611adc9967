"""Files below a script's folder that it opens for writing before it is timed: each arm and each launch starts it again."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable

MOST = 20
"""Files that are told."""


def watch(torch: Any, own: str | None) -> Callable[[], list[str]]:
    """Hear of the files that Python opens, and of those that ``torch.save`` does. ``own``: how the probe's file begins.

    Returns:
        What ends it, and returns the files. An audit hook stays for the life of a process: it then returns at once.
    """
    found: set[str] = set()
    folder, left_out = os.path.join(os.getcwd(), ""), ("/dev/", "/proc/", own or "/dev/")
    is_over: list[bool] = []

    def heard(event: str, arguments: Any) -> None:
        """As Python calls it for each event. A closure, which costs less than a method; it must not raise."""
        if is_over or event != "open":
            return
        try:
            path = os.path.abspath(os.fsdecode(arguments[0])) if arguments[2] & os.O_ACCMODE and len(found) < MOST else ""
            if path.startswith(folder) and not path.startswith(left_out) and "__pycache__" not in path:
                found.add(path[len(folder) :])
        except (TypeError, ValueError, OSError):  # it is no path, or there is no folder any more
            pass

    def stop() -> list[str]:
        is_over.append(True)
        return sorted(name.encode(errors="replace").decode() for name in found)  # one need not be UTF-8

    save = torch.save

    @functools.wraps(save)
    def saved(*args: Any, **kwargs: Any) -> Any:  # it opens by C++
        heard("open", (args[1] if len(args) > 1 else kwargs.get("f"), None, os.O_WRONLY))
        return save(*args, **kwargs)

    sys.addaudithook(heard)
    torch.save = saved
    return stop
