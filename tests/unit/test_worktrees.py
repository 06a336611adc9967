"""Revisions checked out into worktrees of their own, from a real repository."""

from __future__ import annotations

import socket
import subprocess
from contextlib import suppress

import pytest

from measurement.errors import PlanError
from runners.planning.command_place import commit_of, repository_of, worktree
from tests.kit.commands import git

pytestmark = pytest.mark.process


def test_a_revision_stands_in_a_folder_of_its_own_and_is_gone_afterwards(repository, tmp_path):
    (repository / "train.py").write_text("not committed")
    with worktree(repository_of(repository / "train.py"), "v1") as folder:
        assert (folder / "train.py").read_text() == "old"
        assert folder.name == repository.name
    assert not folder.parent.exists()
    assert (repository / "train.py").read_text() == "not committed"
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert not (tmp_path / "hooked").exists()


def test_a_worktree_is_removed_when_what_runs_in_it_fails_or_has_written_there(repository):
    with suppress(KeyError), worktree(repository, "HEAD") as folder:
        (folder / "written").write_text("")
        raise KeyError
    assert not folder.parent.exists()


def test_a_killed_process_leaves_nothing_for_long(repository, tmp_path, monkeypatch):
    """Another host's processes cannot be known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    worktrees = tmp_path / "ringside" / "worktrees"
    here, elsewhere = (
        worktrees / f"{host}-{ended.pid}-x" for host in (socket.gethostname(), "another")
    )
    for folder in (here, elsewhere):
        (folder / "own").mkdir(parents=True)
    with worktree(repository, "HEAD") as folder:
        assert folder.is_relative_to(worktrees)
        assert not here.exists() and elsewhere.exists()


def test_revisions_and_repositories_that_are_not_there_are_refused(repository, tmp_path):
    assert commit_of(repository, "v1") == git(repository, "rev-parse", "HEAD~1").strip()
    for revision in ("nothing", "--all", "HEAD:train.py"):
        with pytest.raises(PlanError, match="is not a revision of the git repository"):
            commit_of(repository, revision)
    with pytest.raises(PlanError, match="is not in a git repository"):
        repository_of(tmp_path / "elsewhere.py")


def test_git_is_asked_about_the_folder_even_from_within_a_hook(repository, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert repository_of(repository) == repository
