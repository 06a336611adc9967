"""The folder in which one start of a user's command works: the user's files appear in it, and what is written stays in it.

It is laid out like the file system: ``/home/me/train`` is ``ROOT/home/me/train`` in it. The folder of the command is a
real one, with small files copied and large ones linked. So are the folders above it, which have links to what lies beside.
Before a link is written through, the agent puts a copy in its place (``ringside_agent.sandbox``).

As a program, it makes one on another host: ``python -m runners.processes.sandbox ROOT FOLDER LEFT_OUT TOKEN``. With ROOT alone it
removes that.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measurement.agent.ringside_agent.sandbox import LOCK
from measurement.errors import LaunchError
from measurement.files import LOCK_FILE
from runners.processes import remote

MAX_COPIED_BYTES = 1 << 20
"""Larger files are linked."""
MAX_ENTRIES = 2000
"""Files and folders that are laid out one by one. A folder that has more, such as a data set, is linked as a whole."""
LEVELS_ABOVE = 3
"""Folders above the command's in which all else is linked, for ``../../data``."""
MAX_BESIDE = 1000
"""Entries of a folder above the command's that are linked; of a folder with more, none are."""
LINKED_WHOLE = (".git", ".hg", ".svn", "node_modules")
MARKS = ("pyvenv.cfg", "conda-meta", LOCK_FILE)
"""What a Python environment, or a results folder, has at its top."""
TRACKERS = ("wandb", "mlflow", "comet_ml", "neptune")
"""Modules of trackers that ``OFFLINE`` is for."""
OFFLINE = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "COMET_START_ONLINE": "0",
    "COMET_AUTO_LOG_DISABLE": "1",
    "COMET_ERROR_TRACKING_ENABLE": "0",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Comet's ``Experiment`` has no variable for offline, so it is disabled. MLflow 3 refuses folders unless they are allowed, and a
database takes it seconds to make, for each start."""
QUIET = ("offline", "disabled", "dryrun", "debug", "read-only", "0")
"""Values of these variables with which a user asks for no more than that."""
WITHOUT_LOCKS = {"GIT_OPTIONAL_LOCKS": "0"}
"""Has ``git status`` leave the index of the user's repository alone."""
CANNOT_BE_MADE = "a folder of its own cannot be made for it in '{}': {}; name a results folder where every host may write (-o)"
TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """The folder of one start, on all its hosts; nothing is written before ``make``."""

    root: Path
    """Below which it is laid out."""
    users: Path
    """Where the command starts, as the user has it: the real path, without links."""
    left_out: Path
    """The results folder, which may lie in the user's."""
    hosts: Sequence[str]
    """The other hosts."""
    are_offline: bool
    """Whether experiment trackers are told to stay offline."""
    is_kept: bool

    @property
    def folder(self) -> Path:
        """Where the command starts in it."""
        return inside(self.root, self.users)

    @property
    def settings(self) -> dict[str, Any]:
        """What its agents are told of it."""
        return {"sandbox": str(self.root), "trackers": TRACKERS if self.are_offline else ()}

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Variables of its processes besides those that they inherit."""
        if not self.are_offline:
            return WITHOUT_LOCKS
        modes = {name: value for name, value in OFFLINE.items() if inherited.get(name, "").lower() not in QUIET}
        return WITHOUT_LOCKS | modes | {"MLFLOW_TRACKING_URI": (self.folder / "mlruns").as_uri()}

    def make(self) -> None:
        """Make it here, and on all hosts that do not share this one's files, in the place of what a broken launch left or kept.

        Raises:
            LaunchError: there is no room, or a host does not answer.
        """
        shutil.rmtree(self.root, ignore_errors=True)
        token = secrets.token_hex(8)
        try:
            lay_out(self.root, self.users, left_out=self.left_out)
            (self.root / LOCK).write_text(token, encoding="utf-8")
        except OSError as error:
            raise LaunchError(CANNOT_BE_MADE.format(self.root, error)) from error
        self._run(self.root, self.users, self.left_out, token)

    def remove(self) -> None:
        """Remove it on all hosts that answer, unless it is to be kept. Twice is harmless."""
        if not self.is_kept and self.root.exists():
            shutil.rmtree(self.root, ignore_errors=True)
            with contextlib.suppress(LaunchError):
                self._run(self.root)

    def _run(self, *words: object) -> None:
        remote.run_on(self.hosts, remote.python("runners.processes.sandbox", *map(str, words)), timeout_s=TIMEOUT_S)

    def as_users(self, text: str) -> str:
        """A text that names files as the user knows them."""
        return text.replace(str(self.root), "").replace(os.path.relpath(self.root), "")


def inside(root: Path, path: Path) -> Path:
    """Return where a file of the user's appears."""
    return root / path.relative_to("/")


def lay_out(root: Path, folder: Path, *, left_out: Path) -> None:
    """Make a folder for one start; an ``OSError`` passes through. All paths are real ones, without links."""
    root.mkdir(mode=0o700, parents=True)  # it holds copies of files that others may not read
    inside(root, folder).mkdir(parents=True)
    for below, above in itertools.pairwise([folder, *folder.parents][: LEVELS_ABOVE + 1]):
        entries = [entry for entry in _entries(above, left_out) if entry.name != below.name]
        for entry in entries if len(entries) <= MAX_BESIDE else ():
            (inside(root, above) / entry.name).symlink_to(entry.path)
    _copy_below(folder, inside(root, folder), left_out=left_out, most=MAX_ENTRIES)


def _copy_below(folder: str | Path, place: Path, *, left_out: Path, most: int) -> int:
    """Copy small files, and link what is large. Folders with few entries are laid out first, until there are ``most`` in all.

    Returns how many are left of ``most``.
    """
    folders = []
    for entry in _entries(folder, left_out):
        target = place / entry.name
        if entry.is_symlink():
            target.symlink_to(Path(entry.path).readlink())
        elif entry.is_dir():
            folders.append((0 if left_out.is_relative_to(entry.path) else _size(entry, most), entry.name, entry.path))
        elif not (most > 0 and _copied(entry, target)):
            target.symlink_to(entry.path)
        most -= 1
    for size, name, path in sorted(folders):
        if size <= most:
            (place / name).mkdir()
            most = _copy_below(path, place / name, left_out=left_out, most=most)
        else:
            (place / name).symlink_to(path)
    return most


def _copied(entry: os.DirEntry[str], target: Path) -> bool:
    """Copy a file with its times, if it is a small one that may be read."""
    if not entry.is_file() or entry.stat().st_size > MAX_COPIED_BYTES or not os.access(entry.path, os.R_OK):
        return False
    shutil.copy2(entry.path, target)
    return True


def _size(entry: os.DirEntry[str], most: int) -> int:
    """How many entries there are below a folder, or more than ``most``, as of a repository, environment or results folder."""
    if entry.name in LINKED_WHOLE or any(Path(entry.path, name).exists() for name in MARKS):
        return most + 1
    below = (name for _, folders, files in os.walk(entry.path) for name in (*folders, *files))
    return sum(1 for _ in itertools.islice(below, most + 1))


def _entries(folder: str | Path, left_out: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, without what is left out; nothing where it may not be read."""
    with contextlib.suppress(PermissionError), os.scandir(folder) as entries:
        return [entry for entry in entries if entry.path != str(left_out)]
    return []


def main(root: Path, folder: Path | None = None, left_out: Path = Path(), *, token: str = "") -> None:
    """Make one here, unless hosts share it or this one has no such folder of a command; what lies there of others goes.

    ``token``: is in that which the driver has made. Without ``folder``: remove it, and what is empty without it.
    """
    with contextlib.suppress(OSError):
        if token and (root / LOCK).read_text(encoding="utf-8") == token:
            return
    if root.exists():
        shutil.rmtree(root, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.removedirs(root.parent)
    try:
        if folder is not None and folder.is_dir():
            lay_out(root, folder, left_out=left_out)
    except FileExistsError:  # hosts share it, and this one does not see all of it yet
        pass
    except OSError as error:
        sys.exit(CANNOT_BE_MADE.format(root, error))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), token="".join(sys.argv[4:]))
