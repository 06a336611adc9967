"""The folder in which one start of a user's command works: it shows the user's files and keeps all
changes to itself.

It is laid out like the file system: ``/home/me/train`` is ``ROOT/home/me/train`` in it. The folder
of the command is a real one, with small files copied and large ones linked. So are the folders
above it, whose other entries are linked. Before a linked file is written, the agent replaces the
link by a copy (``ringside_agent.sandbox``).

As a program it makes one on another host: ``python -m runners.processes.sandbox ROOT FOLDER
LEFT_OUT TOKEN``. With ROOT alone it removes it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import sys
from collections.abc import Sequence
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
"""Files and folders that are made one by one. A folder with more, such as a data set, is linked as
a whole."""
LEVELS_ABOVE = 3
"""Folders above the command's whose other entries are linked, for ``../../data``."""
MAX_BESIDE = 1000
"""A folder above the command's with more entries has no links."""
LINKED_WHOLE = (".git", ".hg", ".svn", "node_modules")
MARKS = ("pyvenv.cfg", "conda-meta", LOCK_FILE)
"""Files at the top of a Python environment or a results folder."""
TRACKERS = ("wandb", "mlflow", "comet_ml", "neptune")
"""Modules of the trackers in ``OFFLINE``."""
OFFLINE = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "COMET_START_ONLINE": "0",
    "COMET_AUTO_LOG_DISABLE": "1",
    "COMET_ERROR_TRACKING_ENABLE": "0",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Comet's ``Experiment`` has no variable for offline, so it is disabled. MLflow 3 refuses folders
unless they are allowed, and needs seconds for a database at each start."""
WITHOUT_LOCKS = {"GIT_OPTIONAL_LOCKS": "0"}
"""Keeps ``git status`` from changing the index of the user's repository."""
CANNOT_BE_MADE = (
    "its working folder cannot be made in '{}': {}; name a results folder where every host may"
    " write (-o)"
)
TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """The folder of one start, on all its hosts; nothing is written before ``make``."""

    root: Path
    """The folder under which it is made."""
    users: Path
    """The user's folder in which the command starts: the real path, without links."""
    left_out: Path
    """The results folder, which may be in the user's."""
    hosts: Sequence[str]
    """The other hosts."""
    are_offline: bool
    """Whether experiment trackers are told to stay offline."""
    is_kept: bool

    @property
    def folder(self) -> Path:
        """The folder in it in which the command starts."""
        return inside(self.root, self.users)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for its agents."""
        return {"sandbox": str(self.root), "trackers": TRACKERS if self.are_offline else ()}

    @property
    def variables(self) -> dict[str, str]:
        """Variables that its processes have in addition to those that they inherit."""
        if not self.are_offline:
            return WITHOUT_LOCKS
        return WITHOUT_LOCKS | OFFLINE | {"MLFLOW_TRACKING_URI": (self.folder / "mlruns").as_uri()}

    def make(self) -> None:
        """Make it here, and on all hosts that do not share this one's files.

        It replaces the folder of an earlier launch.

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
        """Remove it on all hosts that answer, unless it is to be kept. Can be called again."""
        if not self.is_kept and self.root.exists():
            shutil.rmtree(self.root, ignore_errors=True)
            with contextlib.suppress(LaunchError):
                self._run(self.root)

    def _run(self, *words: object) -> None:
        remote.run_on(
            self.hosts,
            remote.python("runners.processes.sandbox", *map(str, words)),
            timeout_s=TIMEOUT_S,
        )

    def as_users(self, text: str) -> str:
        """A text with the user's paths instead of those in the folder."""
        return text.replace(str(self.root), "")


def inside(root: Path, path: Path) -> Path:
    """Return the path of a user's file under ``root``."""
    return root / path.relative_to("/")


def lay_out(root: Path, folder: Path, *, left_out: Path) -> None:
    """Make a folder for one start; raises ``OSError``. All paths are real ones, without links."""
    root.mkdir(mode=0o700, parents=True)  # it holds copies of files that others may not read
    inside(root, folder).mkdir(parents=True)
    for below, above in itertools.pairwise([folder, *folder.parents][: LEVELS_ABOVE + 1]):
        entries = [entry for entry in _entries(above, left_out) if entry.name != below.name]
        for entry in entries if len(entries) <= MAX_BESIDE else ():
            (inside(root, above) / entry.name).symlink_to(entry.path)
    _copy_below(folder, inside(root, folder), left_out=left_out, most=MAX_ENTRIES)


def _copy_below(folder: str | Path, place: Path, *, left_out: Path, most: int) -> int:
    """Copy small files and link large ones.

    Folders with few entries come first, until there are ``most`` entries in all.

    Returns how many are left of ``most``.
    """
    folders = []
    for entry in _entries(folder, left_out):
        target = place / entry.name
        if entry.is_symlink():
            target.symlink_to(Path(entry.path).readlink())
        elif entry.is_dir():
            folders.append(
                (
                    0 if left_out.is_relative_to(entry.path) else _size(entry, most),
                    entry.name,
                    entry.path,
                )
            )
        elif most > 0 and _is_small(entry):
            shutil.copy2(entry.path, target)
        else:
            target.symlink_to(entry.path)
        most -= 1
    for size, name, path in sorted(folders):
        if size <= most:
            (place / name).mkdir()
            most = _copy_below(path, place / name, left_out=left_out, most=most)
        else:
            (place / name).symlink_to(path)
    return most


def _is_small(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file that is copied: a small and readable one."""
    return (
        entry.is_file()
        and entry.stat().st_size <= MAX_COPIED_BYTES
        and os.access(entry.path, os.R_OK)
    )


def _size(entry: os.DirEntry[str], most: int) -> int:
    """The number of entries below a folder; more than ``most`` for a repository, environment or
    results folder.
    """
    if entry.name in LINKED_WHOLE or any(Path(entry.path, name).exists() for name in MARKS):
        return most + 1
    below = (name for _, folders, files in os.walk(entry.path) for name in (*folders, *files))
    return sum(1 for _ in itertools.islice(below, most + 1))


def _entries(folder: str | Path, left_out: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder without what is left out; none if it cannot be read."""
    with contextlib.suppress(PermissionError), os.scandir(folder) as entries:
        return [entry for entry in entries if entry.path != str(left_out)]
    return []


def main(
    root: Path, folder: Path | None = None, left_out: Path = Path(), *, token: str = ""
) -> None:
    """Make one here, unless hosts share it or this host has no such folder of a command.

    An earlier one is removed.

    ``token``: in the folder that the driver has made. Without ``folder``: remove it, and parents
    that are empty then.
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
    except FileExistsError:  # hosts share it, and this one does not see all files yet
        pass
    except OSError as error:
        sys.exit(CANNOT_BE_MADE.format(root, error))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), token="".join(sys.argv[4:]))
