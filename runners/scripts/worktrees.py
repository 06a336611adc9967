"""Revisions of the user's scripts, each in a worktree of its own for as long as a comparison takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from install.cache import cache_root
from runners.planning.worktrees import commit_of, has_changes, repository_of, worktree


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
    repository = repository_of(folder).resolve()
    below = folder.resolve().relative_to(repository)
    return Revision(repository=repository, commit=commit_of(repository, name), below=below, has_changes=has_changes(repository))


@contextmanager
def worktrees(revisions: dict[str, Revision]) -> Iterator[dict[str, Path]]:
    """Check revisions out while the context lasts; yields the folder of each that stands for the user's own.

    They lie in the cache folder of the user's home, which hosts share.
    """
    beside = cache_root().parent / "worktrees"
    if revisions:
        beside.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        made = {name: stack.enter_context(worktree(one.repository, one.commit, beside=beside)) for name, one in revisions.items()}
        yield {name: folder / revisions[name].below for name, folder in made.items()}
