"""Which costly tests run: a twelfth, by the commit; every one for some commit, and all of them
where that is asked for."""

from __future__ import annotations

import pytest

from tests import conftest

pytest_plugins = "pytester"
TESTS = """
import pytest

@pytest.mark.costly
@pytest.mark.parametrize("number", range(36))
def test_costly(number): ...

def test_cheap(): ...
"""


@pytest.fixture
def run_at(pytester, monkeypatch):
    """Runs tests as ``make test`` does at a commit; returns the names of those that ran."""
    pytester.makeini("[pytest]\nmarkers = costly")
    pytester.makeconftest(
        "from tests.conftest import leave_out_costly as pytest_collection_modifyitems"
    )
    pytester.makepyfile(TESTS)

    def run_them(commit, draw="commit"):
        monkeypatch.setenv("RINGSIDE_DRAW", draw)
        monkeypatch.setattr(conftest, "commit", lambda: commit)
        passed, skipped, failed = pytester.inline_run("-p", "no:cacheprovider").listoutcomes()
        assert len(passed) + len(skipped) == 37 and not failed
        return {report.nodeid.partition("::")[2] for report in passed}

    return run_them


@pytest.mark.slow
def test_a_twelfth_is_drawn_by_the_commit_and_all_if_asked(run_at):
    first = run_at("a")
    assert len(first) == 1 + 3 and "test_cheap" in first
    assert run_at("a") == first, "the same again for who looks at a failure"
    assert run_at("b") != first
    assert len(run_at("a", draw="all")) == 37
