"""Where an arm's command starts and by which Python: its directory, environment, and the checkout
of its commit, in a worktree of its own.

For our commands and users'.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from install.build_horovod import cache_root
from measurement.errors import PlanError, UnavailableError, about, cut, quoted
from measurement.plans.plan import Plan
from measurement.plans.sections import Arm
from runners.processes.local import remove_left_folders, search_path

NO_HOOKS = ("-c", "core.hooksPath=/dev/null")
"""A checkout of ours runs no post-checkout hook of the user's."""


@dataclass(frozen=True, kw_only=True)
class CommandPlace:
    """Resolved before anything starts. A commit is checked out when its folder is first needed."""

    typed_in: Path
    """Where a person would type the command."""
    python: str | None = None
    """None: the driver's, or what a script finds on PATH."""
    commit: str | None = None
    """In full; None: the files as they are."""
    repository: Path | None = None
    """The repository of the commit."""
    file: str | None = None
    """The file that the command runs, relative to where it starts; None: not known."""

    @property
    def checkout(self) -> Path | None:
        """The commit's worktree, which is kept until this process ends; None without one."""
        return (
            kept_worktree(self.repository, self.commit) if self.repository and self.commit else None
        )

    @property
    def folder(self) -> Path:
        """Where the command starts: of a commit, in its checkout."""
        checkout = self.checkout
        return (
            checkout / self.typed_in.resolve().relative_to(str(self.repository))
            if checkout
            else self.typed_in
        )

    @property
    def recorded(self) -> dict[str, str | None]:
        """Its fields in the record of an arm."""
        return {"python": self.python, "commit": self.commit}

    @property
    def interpreter(self) -> str:
        """The Python that runs ranks whose command names none."""
        return self.python or sys.executable

    @property
    def environment(self) -> dict[str, str]:
        """Variables that activate the Python's environment; none without a Python."""
        return activated(self.python, search_path()) if self.python else {}

    def workload_here(self, reference: str) -> str:
        """The reference that makes this process find the workload that ranks find from where they
        start.
        """
        is_here = self.file is None or (self.commit is None and self.typed_in == Path.cwd())
        return (
            reference
            if is_here
            else f"{self.folder / str(self.file)}:{reference.rpartition(':')[2]}"
        )

    def shell_line(
        self, command: str, *, environment: Mapping[str, str], path: str, host: str = ""
    ) -> str:
        """Return a line to paste into a shell, which runs a command as an arm's launcher does.

        Args:
            command: as typed in a shell.
            environment: variables that it needs besides those of the user's shell.
            path: its PATH. Only the first folder is named, where the user's PATH does not begin
                with it.
            host: where to type it; empty: here.
        """
        first_folder = path.split(os.pathsep)[0]
        needs_path = first_folder != os.environ.get("PATH", "").split(os.pathsep)[0]
        words = [f'PATH={shlex.quote(first_folder)}:"$PATH"'] if needs_path else []
        words += [
            f"{name}={shlex.quote(value)}" for name, value in environment.items() if name != "PATH"
        ]
        checkout, folder = self.pasted
        change_folder = [] if folder == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
        return " && ".join([*checkout, *change_folder, " ".join([*words, command])]) + (
            f"  # on {host}" if host else ""
        )

    @property
    def pasted(self) -> tuple[list[str], Path]:
        """What to type first, and where the command then starts: for a commit, in a new checkout,
        which stays.
        """
        if self.repository is None or self.commit is None:
            return [], self.typed_in
        checkout = self.repository.with_name(f"{self.repository.name}-{self.commit[:12]}")
        words = ["git", "-C", self.repository, "worktree", "add", "--detach", checkout, self.commit]
        return [shlex.join(map(str, words))], checkout / self.typed_in.resolve().relative_to(
            self.repository
        )


def activated(python: str, path: str) -> dict[str, str]:
    """Return the variables that activate a Python's environment, and from which torchrun takes its
    ranks' Python.
    """
    folder = Path(python).parent
    virtual = (
        {"VIRTUAL_ENV": str(folder.parent)} if (folder.parent / "pyvenv.cfg").is_file() else {}
    )
    return virtual | {"PATH": os.pathsep.join([str(folder), path]), "PYTHON_EXEC": python}


def resolve_place(name: str, arm: Arm, plan: Plan, *, file: str | None = None) -> CommandPlace:
    """Resolve where the command of an arm starts.

    ``file``: what it runs, relative to where it starts or absolute; None: not known. A commit must
    have it.

    Raises:
        PlanError: there is no such folder, Python, repository, revision or file.
    """
    with about(f"arm '{name}'"):
        folder = Path(arm.directory or ".").expanduser().absolute()
        if not folder.is_dir():
            raise PlanError(
                f"directory '{folder}' is not a folder; give the one in which the command starts"
            )
        python = None if arm.python is None else interpreter(arm.python, is_here=plan.hosts is None)
        if arm.commit is None:
            return CommandPlace(typed_in=folder, python=python, file=file)
        place = (folder / file).parent.resolve() / Path(file).name if file else folder.resolve()
        search_start = folder if arm.command else place
        repository = repository_of(
            next(parent for parent in (search_start, *search_start.parents) if parent.is_dir())
        )
        if not folder.resolve().is_relative_to(repository):
            folder = repository  # the workload's file alone is of the repository
        commit = commit_of(repository, arm.commit)
        for needed in (folder.resolve(), place):
            path = Path(os.path.relpath(needed, repository))
            if needed.is_relative_to(repository) and not has_in_commit(repository, commit, path):
                raise PlanError(f"commit {quoted(arm.commit)} has no '{path}'")
        # an absolute path would not be in the checkout
        relative_file = os.path.relpath(place, folder.resolve()) if file else None
        return CommandPlace(
            typed_in=folder, python=python, commit=commit, repository=repository, file=relative_file
        )


def interpreter(python: str, *, is_here: bool) -> str:
    """Return the path of a Python. Links are kept, since they identify a virtual environment."""
    path = os.path.abspath(os.path.expanduser(python)) if os.sep in python else shutil.which(python)  # noqa: PTH100, PTH111
    if not is_here and os.path.isabs(python):  # noqa: PTH117 - it may be on the hosts alone
        return python
    if path is None or not os.access(path, os.X_OK) or Path(path).is_dir():
        raise UnavailableError(
            f"python {quoted(python)} is not an executable program; give the path of one, such as"
            " /envs/old/bin/python",
            lack=f"no {python}",
        )
    return path


def require_program(word: str, *, path: str, folder: Path, remedy: str) -> Path:
    """Return the path of a program that a command names, from ``folder`` or on ``path``.

    Raises:
        UnavailableError: there is none.
    """
    is_path = os.sep in word
    program = str(folder / word) if is_path else shutil.which(word, path=path)
    if program is None or (is_path and not Path(program).is_file()):
        where = "there" if is_path else "on PATH"
        raise UnavailableError(
            f"'{word}' is not {where}; {remedy}", lack=f"'{word}' is not installed"
        )
    return Path(program)


def repository_of(path: Path) -> Path:
    """Return the top folder of the git repository of a file or folder, links resolved.

    Raises:
        PlanError: it is in no repository, or there is no git.
    """
    folder = path if path.is_dir() else path.parent
    done = _git(folder, "rev-parse", "--show-toplevel")
    if done.returncode:
        raise PlanError(
            f"commit: '{path}' is not in a git repository that can be read ({_git_error(done)});"
            " leave commit out, or name a file of one"
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
    parent = _new_worktree_folder()
    folder = parent / repository.name
    try:
        _git(repository, "worktree", "prune")  # removes what a killed session left
        done = _git(
            repository, *NO_HOOKS, "worktree", "add", "--quiet", "--detach", str(folder), commit
        )
        if done.returncode:
            raise PlanError(
                f"commit {quoted(revision)} of '{repository}' cannot be checked out:"
                f" {_git_error(done)}"
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


def _new_worktree_folder() -> Path:
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


def _git_error(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    return cut(lines[-1]) if lines else f"git ended with code {done.returncode}"
