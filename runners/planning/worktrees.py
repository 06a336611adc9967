"""Checks a git revision out into a separate worktree, so that an arm may run another commit than
the working files.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from install.build_horovod import cache_root
from measurement.errors import PlanError, cut, quoted
from runners.processes.local import remove_left_folders

NO_HOOKS = ("-c", "core.hooksPath=/dev/null")
"""A checkout of ours runs no post-checkout hook of the user's."""


def repository_of(path: Path) -> Path:
    """Return the top folder of the git repository of a file or folder, links resolved.

    Raises:
        PlanError: it is in no repository, or there is no git.
    """
    folder = path if path.is_dir() else path.parent
    done = _git(folder, "rev-parse", "--show-toplevel")
    if done.returncode:
        raise PlanError(
            f"commit: '{path}' is not in a git repository that can be read ({_error(done)}); leave"
            " commit out, or name a file of one"
        )
    return Path(done.stdout.rstrip("\n")).resolve()


def commit_of(repository: Path, revision: str) -> str:
    """Return the full name of the commit that a revision stands for, such as ``main~2``, a tag or
    the start of a hash.

    Raises:
        PlanError: the repository does not have it.
    """
    done = _git(
        repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
    )
    if done.returncode:
        raise PlanError(
            f"commit {quoted(revision)} is not a revision of the git repository '{repository}';"
            f" give a branch, a tag or a hash that 'git -C {repository} log --all --oneline' lists,"
            " or fetch it first"
        )
    return done.stdout.strip()


def commits_between(repository: Path, good: str, bad: str) -> list[str]:
    """Return the commits after ``good`` up to ``bad``, along first parents, earliest first; none if
    ``good`` is no ancestor.
    """
    if _git(repository, "merge-base", "--is-ancestor", good, bad).returncode:
        return []
    return _git(
        repository, "rev-list", "--first-parent", "--reverse", f"{good}..{bad}"
    ).stdout.split()


def commit_summary(repository: Path, commit: str) -> str:
    """Return author, message and changed files of a commit, as git prints them."""
    return _git(repository, "log", "-1", "--stat", commit).stdout


def has_in_commit(repository: Path, commit: str, path: Path) -> bool:
    """Whether a commit has a file or folder. ``path``: from the repository's top."""
    return (
        _git(
            repository, "cat-file", "-e", f"{commit}:{'' if path == Path() else path.as_posix()}"
        ).returncode
        == 0
    )


def has_changes(repository: Path) -> bool:
    """Whether tracked files have uncommitted changes, which a worktree would lack."""
    return bool(_git(repository, "status", "--porcelain", "--untracked-files=no").stdout.strip())


@contextmanager
def worktree(repository: Path, revision: str) -> Iterator[Path]:
    """A context in which a revision is checked out, into a folder that is removed afterwards.

    It lacks what git does not have: data, build outputs, uncommitted changes, submodules. The
    folder is in the cache of the user's home, which hosts share, or in a temporary folder if that
    cannot be written.

    Raises:
        PlanError: there is no such revision, or it cannot be checked out.
    """
    commit = commit_of(repository, revision)
    parent = _new_folder()
    folder = parent / repository.name
    try:
        _git(repository, "worktree", "prune")  # removes what a killed session left
        done = _git(
            repository, *NO_HOOKS, "worktree", "add", "--quiet", "--detach", str(folder), commit
        )
        if done.returncode:
            raise PlanError(
                f"commit {quoted(revision)} of '{repository}' cannot be checked out: {_error(done)}"
            )
        yield folder
    finally:
        _git(repository, "worktree", "remove", "--force", "--force", str(folder))
        shutil.rmtree(parent, ignore_errors=True)


@cache
def kept_worktree(repository: Path, commit: str) -> Path:
    """Check a commit out once, see ``worktree``; the folder is removed when this process ends."""
    stack = ExitStack()
    folder = stack.enter_context(worktree(repository, commit))
    atexit.register(stack.close)
    return folder


def _new_folder() -> Path:
    """Make a folder, and remove those that killed processes of this host left."""
    root = cache_root().parent / "worktrees"
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f"{socket.gethostname()}-{os.getpid()}-", dir=root)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="worktree-")).resolve()
    remove_left_folders(root, "")
    return Path(folder).resolve()


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # a hook sets some
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env={**environment, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except FileNotFoundError as error:
        raise PlanError(
            "commit needs the program 'git', which is not on PATH; install it, or leave commit out"
        ) from error


def _error(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    return cut(lines[-1]) if lines else f"git ended with code {done.returncode}"
