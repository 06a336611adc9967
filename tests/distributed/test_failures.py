"""Ranks that die, hang or raise, and a user who has enough: the others finish, what was measured is
kept, nothing is left."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from measurement.records.results import ResultsFolder
from tests.conftest import no_process_stays, wait_until, write_plan
from tests.kit.commands import started
from tests.kit.comparisons import compare

pytestmark = pytest.mark.usefixtures("no_processes_left")
WRONG = Path(__file__).parent / "plugins" / "wrong.py"
ROUNDS = 8


BAD = {
    "Dies": ("failed", "rank 1 died without reporting an error", "last words of rank 1"),
    "Hangs": ("timeout", "no answer from rank", "going to sleep"),
    "Raises": (
        "failed",
        "rank 1: ValueError: no more steps from me",
        "ValueError: no more steps from me",
    ),
}
"""Status, message and last line of the log of each backend that fails in its own way."""


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """A comparison of them all with an arm that is well."""
    arms = {name.lower(): f"{WRONG}:{name}" for name in BAD}
    # whose traceback is short: its last words are beside it
    for name, launcher in (("Dies", "torchrun"), ("Hangs", "spawn")):
        arms[name.lower()] = {"backend": f"{WRONG}:{name}", "launcher": launcher}
    measurement = {"rounds": ROUNDS, "local_every": 0, "block_timeout_s": 8}
    with no_process_stays():
        folder, arms = tmp_path_factory.mktemp("failures"), {"ddp": "ddp", **arms}
        return compare(folder, arms=arms, measurement=measurement, code=1)


def test_arms_fail_and_the_other_finishes(failures):
    assert len(failures.records["ddp"].blocks) == ROUNDS
    expected = {"ddp": "ok"} | {name.lower(): status for name, (status, _, _) in BAD.items()}
    assert failures.statuses == expected
    assert {arm["name"]: arm["status"] for arm in failures.report["arms"]} == expected


@pytest.mark.parametrize("name", BAD)
def test_a_failed_arm_is_told_with_the_rank_that_did_it_and_its_log(failures, name):
    status, message, last_line = BAD[name]
    bad = failures.records[name.lower()]
    assert bad.status == status
    assert message in bad.error.message
    assert 1 in bad.error.ranks
    assert name == "Hangs" or bad.error.ranks == [1]
    assert last_line in bad.error.log_tail["rank-1.log"]
    assert 0 < len(bad.blocks) < ROUNDS
    if name == "Raises":
        assert ", at " in bad.error.message and "wrong.py:" in bad.error.message
    if name == "Hangs":
        assert "misbehave" in bad.error.log_tail["rank-1.log"]  # the traceback of where it hangs
    assert message in failures.read("report.md")


SAYS_EACH_BLOCK = {"backend": f"{WRONG}:SaysEachBlock", "transport": "gloo"}
TRIALS = 1
"""Lines of a rank's log before those of blocks: of the trial that sets the blocks' length."""


def wait_for_blocks(folder, *arms):
    """Until each arm has begun three blocks, so that at least one of each has been recorded."""
    wait_until(lambda: all(blocks_begun(folder, arm) >= 3 for arm in arms), seconds=120)


def blocks_begun(folder, arm):
    """By the log of its first rank."""
    log = folder / "out" / "launch-000" / arm / "rank-0.log"
    return max(0, log.read_text().count("block\n") - TRIALS) if log.is_file() else 0


def test_an_interrupted_comparison_keeps_its_blocks_and_resumes(tmp_path):
    """Also the rounds since the last half minute's write: nothing but the interruption writes so
    soon. Another changes nothing."""
    measurement = {"rounds": None, "seconds_per_launch": 120, "local_every": 0}
    plan = write_plan(tmp_path, arms={"ddp": SAYS_EACH_BLOCK}, measurement=measurement)
    with started("compare", plan, "-o", tmp_path / "out") as process:
        wait_for_blocks(tmp_path, "ddp", "ddp-control")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 129, errors
    line = f"ringside compare {plan} -o {tmp_path / 'out'}"
    assert f"ringside: interrupted; go on with: {line}" in errors
    assert "Traceback" not in errors
    records = ResultsFolder(tmp_path / "out").records()
    assert {record.arm for record in records} == {"ddp", "ddp-control"}
    for record in records:
        assert record.status == "ok" and record.blocks and not record.complete
    assert all((tmp_path / "out" / name).is_file() for name in ("comparison.json", "report.html"))
