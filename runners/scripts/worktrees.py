"""Checks a revision of the user's repository out into a folder of its own, for as long as a comparison takes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from install.cache import cache_root
from measurement.errors import PlanError, cut, quoted

GIT_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Revision:
    """A revision of the repository that a folder lies in."""

    repository: Path
    commit: str
    """Its whole number."""
    below: Path
    """Where the folder lies in the repository."""
    has_changes: bool
    """Whether the repository has changes that are not committed: the revision is without them."""


def find_revision(name: str, folder: Path) -> Revision:
    """Find a revision in the repository that a folder lies in.

    Raises:
        PlanError: the folder lies in none, or the repository has no such revision.
    """
    try:
        repository = Path(_git(folder, "rev-parse", "--show-toplevel")).resolve()
    except PlanError as error:
        raise PlanError(f"commit {quoted(name)}: '{folder}' lies in no git repository ({error}); leave commit out") from error
    try:
        commit = _git(folder, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    except PlanError as error:
        raise PlanError(f"commit {quoted(name)} is no revision of '{repository}'; see 'git log' there, or fetch it") from error
    changed = bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    return Revision(repository=repository, commit=commit, below=folder.resolve().relative_to(repository), has_changes=changed)


@contextmanager
def worktrees(revisions: dict[str, Revision]) -> Iterator[dict[str, Path]]:
    """Check revisions out while the context lasts; yields the folder of each that stands for the user's own.

    They lie in the cache folder of the user's home, which hosts share.
    """
    if not revisions:
        yield {}
        return
    root = cache_root().parent / "worktrees"
    root.mkdir(parents=True, exist_ok=True)
    start = f"{socket.gethostname()}-"
    _remove_orphans(root, start)
    made = Path(tempfile.mkdtemp(prefix=f"{start}{os.getpid()}-", dir=root))
    try:
        for name, one in revisions.items():
            _git(one.repository, "worktree", "add", "--detach", "--quiet", str(made / name), one.commit)
        yield {name: made / name / one.below for name, one in revisions.items()}
    finally:
        for name, one in revisions.items():
            with contextlib.suppress(PlanError):
                _git(one.repository, "worktree", "remove", "--force", str(made / name))
        shutil.rmtree(made, ignore_errors=True)
        for one in revisions.values():
            with contextlib.suppress(PlanError):
                _git(one.repository, "worktree", "prune")


def _remove_orphans(root: Path, start: str) -> None:
    """Remove folders of drivers on this host that were killed; git forgets them when it prunes."""
    for folder in root.glob(f"{start}*"):
        pid = folder.name.removeprefix(start).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _git(folder: Path, *arguments: str) -> str:
    """Return what git prints.

    Raises:
        PlanError: it is not installed, or refuses.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlanError(f"git cannot be run: {error}") from error
    if done.returncode:
        raise PlanError(cut(done.stderr.strip() or f"git ended with code {done.returncode}"))
    return done.stdout.strip()
