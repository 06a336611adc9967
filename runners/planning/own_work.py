"""What an arm has of its own besides a backend: a Python, a commit, a workload, options. Resolved before anything starts."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measurement.errors import PlanError, UnavailableError, about, quoted
from measurement.plans.plan import Arm, Plan
from runners.planning.worktrees import commit_of, kept_worktree, repository_of
from runners.processes.local import search_path


@dataclass(frozen=True, kw_only=True)
class OwnWork:
    """What an arm's ranks run, and by which Python."""

    reference: str
    """The workload as the plan names it."""
    workload: str
    """As ranks find it: of a commit, by its place in the worktree."""
    options: dict[str, Any]
    python: str | None = None
    """None: the driver's."""
    commit: str | None = None
    """In full."""
    repository: Path | None = None
    """That the commit is of."""
    worktree: Path | None = None
    """Where the commit lies."""
    beside: Path | None = None
    """In the worktree, what stands for the working directory: what lies there can be imported. None: the working directory."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which launchers find the arm's Python, and torchrun its ranks'."""
        if self.python is None:
            return {}
        return {"PATH": os.pathsep.join([str(Path(self.python).parent), search_path()]), "PYTHON_EXEC": self.python}

    @property
    def interpreter(self) -> str:
        """The Python that runs its ranks."""
        return self.python or sys.executable

    def plan(self, plan: Plan) -> Plan:
        """The plan as the arm runs it."""
        return plan.model_copy(update={"workload": self.workload, "workload_options": self.options})

    def recorded(self) -> dict[str, Any]:
        """Fields of the arm's record."""
        return {"workload": self.reference, "python": self.python, "commit": self.commit}


def resolve_own_work(name: str, arm: Arm, plan: Plan) -> OwnWork:
    """Resolve what an arm has of its own; a commit is checked out, until this process ends.

    Raises:
        PlanError: there is no such Python, repository, revision or file; or the commit would change nothing.
    """
    reference = arm.workload or plan.workload
    found = OwnWork(
        reference=reference,
        workload=reference,
        options={**plan.workload_options, **arm.workload_options},
        python=None if arm.python is None else _interpreter(arm.python, name, is_here=plan.hosts is None),
    )
    if arm.commit is None:
        return found
    with about(f"arm '{name}'"):
        return _at_commit(found, arm.commit)


def _interpreter(given: str, arm: str, *, is_here: bool) -> str:
    """The path of a Python, its links kept: a virtual environment is known by them."""
    path = os.path.abspath(os.path.expanduser(given)) if os.sep in given else shutil.which(given)  # noqa: PTH100, PTH111
    if not is_here and os.path.isabs(given):  # noqa: PTH117 - it may be on the hosts alone
        return given
    if path is None or not os.access(path, os.X_OK) or Path(path).is_dir():
        inside = Path(path or given, "bin", "python")
        hint = f"did you mean '{inside}'?" if inside.is_file() else "give the path of one, such as /envs/old/bin/python"
        raise UnavailableError(f"arm '{arm}': python {quoted(given)} is no program that can be run; {hint}", lack=f"no {given}")
    return path


def _at_commit(found: OwnWork, revision: str) -> OwnWork:
    module, _, name = found.reference.rpartition(":")
    if not name or not module:
        raise PlanError(
            f"commit {quoted(revision)}: workload '{found.reference}' lies in no repository of yours; name yours as "
            "path/to/file.py:Class or package.module:Class, or leave commit out"
        )
    is_file, here = module.endswith(".py"), Path.cwd().resolve()
    file = Path(module).absolute()
    repository = repository_of(_existing(file.parent) if is_file else here)
    commit = commit_of(repository, revision)
    worktree = kept_worktree(repository, commit)
    beside = worktree / here.relative_to(repository) if here.is_relative_to(repository) else None
    workload = found.reference
    if is_file:
        place = worktree / (file.parent.resolve() / file.name).relative_to(repository)
        if not place.is_file():
            raise PlanError(f"commit {quoted(revision)} has no file '{place.relative_to(worktree)}', of which the workload is")
        workload = f"{place}:{name}"
    if beside is not None and not beside.is_dir():
        beside = worktree
    return replace(found, workload=workload, commit=commit, repository=repository, worktree=worktree, beside=beside)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there: a file may be of the commit only."""
    return next(one for one in (folder, *folder.parents) if one.is_dir())
