"""Revisions of the user's repository that scripts are checked out at, for as long as a comparison takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

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
    repository = repository_of(folder)
    return Revision(
        repository=repository,
        commit=commit_of(repository, name),
        below=folder.resolve().relative_to(repository),
        has_changes=has_changes(repository),
    )


@contextmanager
def worktrees(revisions: Mapping[str, Revision]) -> Iterator[dict[str, Path]]:
    """Check revisions out while the context lasts; yields the folder of each that stands for the user's own."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(worktree(one.repository, one.commit)) / one.below for name, one in revisions.items()}
