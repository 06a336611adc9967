"""Keeps what a start writes in a folder of its own, in which the user's files appear as copies and
links.

Python's audit events say what it is about to open, rename or remove. Before a write goes through a
link to a user's file, a file replaces the link: empty where the open truncates it, else a copy. A
linked folder is replaced by a real one full of links. What other programs write through a link is
not seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sys
from _thread import get_ident
from typing import Any, Sequence

LOCK = ".ringside-lock"
MAX_FILES = 20
"""Files elsewhere that are reported."""
MAX_NOTED = 1000
"""Files elsewhere whose names one process keeps."""
UNSHARED = ("/dev/", "/proc/", "/sys/")
CACHES = ("cache", "/torchinductor_")
"""Parts of paths of files that any process may read, or write again."""
ITSELF, ENTRY = True, False
"""Whether an event changes the target of a path, or its entry in a folder, which may be a link."""
EVENTS = {
    "os.rename": ((0, ENTRY), (1, ENTRY)),
    "os.link": ((0, ITSELF), (1, ENTRY)),
    "os.symlink": ((1, ENTRY),),
    **dict.fromkeys(("os.remove", "os.mkdir", "os.rmdir"), ((0, ENTRY),)),
    **dict.fromkeys(("os.truncate", "os.chmod", "os.chown", "os.utime"), ((0, ITSELF),)),
    **dict.fromkeys(("sqlite3.connect", "shutil.rmtree", "os.chdir"), ((0, ITSELF),)),
    "subprocess.Popen": ((2, ITSELF),),
}
"""By audit event, which of its arguments are paths."""
READ_ONLY_EVENTS = ("os.chdir", "subprocess.Popen")
"""Events that write nothing by themselves."""
SAVE = {"torch": "save", "torch.jit": "save", "safetensors.torch": "save_file"}
"""By module, functions that open a file in C++ or Rust."""
MAX_LINKS = 40
"""Links that are followed for one path, as in the kernel."""
HERE, EXCHANGE = -100, 2
"""For ``renameat2``: paths from the current folder, and that both are there before and after."""


class Sandbox:
    """The folder of a start, and what this process has written elsewhere."""

    def __init__(self, root: str, own_files: Sequence[str]) -> None:
        """``own_files``: how paths of the agent's own files begin."""
        self._root = os.path.join(os.path.realpath(root), "")
        self._busy: set[int] = set()
        self._written: set[str] = set()
        hidden = os.path.join(os.path.realpath(os.path.expanduser("~")), ".")
        self._unshared = [*UNSHARED, hidden, *map(os.path.realpath, own_files)]

    def hear(self, event: str, arguments: Any) -> None:
        """As Python calls it for each audit event.

        It raises an ``OSError`` where a file cannot be copied, and nothing else.
        """
        try:
            if event == "open":
                if arguments[2] and arguments[2] & os.O_ACCMODE:
                    self._guard(arguments[0], ITSELF, is_new=bool(arguments[2] & os.O_TRUNC))
            elif event in EVENTS:
                for index, what in EVENTS[event]:
                    self._guard(arguments[index], what, is_written=event not in READ_ONLY_EVENTS)
            elif event in ("tempfile.mkstemp", "tempfile.mkdtemp"):
                self._unshared.append(os.path.realpath(arguments[0]))
        except (TypeError, ValueError, AttributeError):  # it is not a path, or the interpreter ends
            pass

    def wrap(self, module: str, name: str) -> None:
        """Hear of what a function of a module writes (``SAVE``). The path is its second
        argument.
        """
        save = getattr(sys.modules[module], name)

        @functools.wraps(save)
        def saved(*args: Any, **kwargs: Any) -> Any:
            path = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filename"))
            self.hear("open", (path, None, os.O_WRONLY | os.O_TRUNC))
            return save(*args, **kwargs)

        setattr(sys.modules[module], name, saved)

    def written(self) -> list[str]:
        """Some of the files and folders outside that this process has written and that are still
        there, but temporary ones.
        """
        paths = [path for path in sorted(self._written) if os.path.lexists(path)]
        tops = [
            path for path in paths if not any(path.startswith(other + os.sep) for other in paths)
        ]
        # one need not be UTF-8
        return [path.encode(errors="replace").decode() for path in tops[:MAX_FILES]]

    def _guard(
        self, path: Any, what: bool, *, is_new: bool = False, is_written: bool = True
    ) -> None:
        """Redirect a change of what a path leads to into the folder, or note it where it stays
        outside.
        """
        # an open file; or it is this module that writes
        if isinstance(path, int) or get_ident() in self._busy:
            return
        name = os.fsdecode(path)
        self._busy.add(get_ident())
        try:
            full = name if os.path.isabs(name) else os.path.join(os.getcwd(), name)
            place = self._led_to(full, what, is_new=is_new)
            if (
                is_written
                and len(self._written) < MAX_NOTED
                and not self._is_unshared(place)
                and not os.path.isdir(place)
            ):
                self._written.add(place)
        finally:
            self._busy.discard(get_ident())

    def _is_unshared(self, place: str) -> bool:
        return place.startswith((self._root, *self._unshared)) or any(
            cache in place.lower() for cache in CACHES
        )

    def _led_to(self, full: str, what: bool, *, is_new: bool) -> str:
        """Follow a path step by step; links that lead out of the folder are replaced on the way."""
        at, rest, links = os.sep, full.split(os.sep)[::-1], 0
        while rest and links < MAX_LINKS:
            name = rest.pop()
            if name == os.pardir:
                at = os.path.dirname(at)
            elif name not in ("", os.curdir):
                at = os.path.join(at, name)
            target = link_of(at) if rest or what else None
            if target is None:
                continue
            links += 1
            end = os.path.join(os.path.dirname(at), target)
            # what was read counts: another rank may have replaced the link since
            if at.startswith(self._root) and not os.path.realpath(end).startswith(self._root):
                self._replace(at, is_new=is_new and not rest)
            else:
                rest += end.split(os.sep)[::-1]
                at = os.sep
        return at

    def _replace(self, at: str, *, is_new: bool) -> None:
        """Replace a link by what it leads to. Other ranks may be about to do the same."""
        with open(self._root + LOCK, "a", encoding="utf-8") as lock:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.islink(at):
                return
            source = os.path.realpath(at)
            beside = f"{at}.ringside-{os.uname().nodename}-{os.getpid()}"
            if os.path.isdir(source):
                os.mkdir(beside)
                for name in os.listdir(source):
                    os.symlink(os.path.join(source, name), os.path.join(beside, name))
                take_place(beside, at)
            elif os.path.isfile(source) and not is_new:
                import shutil  # which most processes do not need

                shutil.copy2(source, beside)
                os.replace(beside, at)
            elif os.path.isfile(source) or not os.path.exists(source):
                os.unlink(at)


def link_of(path: str) -> str | None:
    """Where a link leads; None: the path is no link, or no longer one."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def take_place(folder: str, link: str) -> None:
    """Replace a link by a folder, atomically where the system can: other ranks may be reading
    there.
    """
    import ctypes

    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if (
        rename is not None
        and rename(HERE, os.fsencode(folder), HERE, os.fsencode(link), EXCHANGE) == 0
    ):
        os.unlink(folder)
    else:
        os.unlink(link)
        os.rename(folder, link)


current: Sandbox | None = None
"""That of this process; None: it has none."""


def written() -> list[str]:
    """What this process has written elsewhere; empty where it has no folder of its own."""
    return current.written() if current else []


def enter(root: str, *own_files: str) -> Sandbox:
    """Confine this process, and those that it forks, to a folder until they end; see
    ``Sandbox``.
    """
    global current  # noqa: PLW0603 - a process has one
    current = Sandbox(root, own_files)
    sys.addaudithook(current.hear)
    return current
