"""Unit tests compute on one thread: their models are small, and a second thread only waits for the
first."""

from __future__ import annotations

import sys

import pytest

from tests.kit.commands import git


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Where the tests of a module have imported torch; those that do not need it do not pay for
    it."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(before)


@pytest.fixture
def repository(tmp_path):
    """Two commits of one file, the first tagged, and a hook that would tell of a checkout."""
    folder = tmp_path / "own"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for text in ("old", "new"):
        (folder / "train.py").write_text(text)
        git(folder, "add", "train.py")
        git(folder, "commit", "--quiet", "-m", text)
    git(folder, "tag", "v1", "HEAD~1")
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    return folder
