"""Ranks that die, hang or raise, and a user who has enough: the others finish, what was measured is kept, nothing is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from measurement.results import ResultsFolder
from tests.conftest import REPOSITORY, needs_horovod, ringside, started_processes, write_plan

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("no_processes_left")]
WRONG = Path(__file__).parent / "plugins" / "wrong.py"
ROUNDS = 8


def compare_with(tmp_path, name, **measurement):
    arms = {"ddp": {"backend": "ddp"}, "bad": {"backend": f"{WRONG}:{name}", "transport": "gloo"}}
    plan = write_plan(tmp_path, arms=arms, measurement={"control": False, "rounds": ROUNDS, "local_every": 0, **measurement})
    done = ringside("compare", plan, "-o", tmp_path / "out")
    return done, {record.arm: record for record in ResultsFolder(tmp_path / "out").records()}


@pytest.mark.parametrize(
    ("name", "status", "message", "last_line"),
    [
        ("Dies", "failed", "rank 1 died without a word", "last words of rank 1"),
        ("DiesWhileAPeerIsBusy", "failed", "rank 1 died without a word, then rank 0", "last words of rank 1"),
        ("Hangs", "timeout", "no answer from rank", "going to sleep"),
        ("Raises", "failed", "rank 1: ValueError: no more steps from me", "ValueError: no more steps from me"),
    ],
)
def test_one_arm_fails_and_the_other_finishes(tmp_path, name, status, message, last_line):
    done, records = compare_with(tmp_path, name, block_timeout_s=8)
    assert done.returncode == 1, done.stderr
    assert records["ddp"].status == "ok"
    assert len(records["ddp"].blocks) == ROUNDS
    bad = records["bad"]
    assert bad.status == status
    assert message in bad.error.message
    assert 1 in bad.error.ranks
    assert name == "Hangs" or bad.error.ranks == [1]
    assert last_line in bad.error.log_tail["rank-1.log"]
    assert 0 < len(bad.blocks) < ROUNDS
    if name == "Hangs":
        assert "misbehave" in bad.error.log_tail["rank-1.log"]  # the traceback of where it hangs
    report = (tmp_path / "out" / "report.md").read_text()
    assert message in report
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert {arm["name"]: arm["status"] for arm in found["arms"]} == {"ddp": "ok", "bad": status}


def begin(tmp_path, **changes):
    plan = write_plan(tmp_path, measurement={"rounds": None, "seconds_per_launch": 120, "local_every": 0}, **changes)
    command = [sys.executable, "-m", "runners.cli", "compare", str(plan), "-o", str(tmp_path / "out")]
    return subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for_blocks(process):
    """Until the comparison says that it measures, and somewhat longer."""
    for line in process.stderr:
        if "measuring blocks" in line:
            time.sleep(3)
            return
    pytest.fail("it never began to measure")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_keeps_its_blocks_and_resumes(tmp_path, sent):
    process = begin(tmp_path)
    try:
        wait_for_blocks(process)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "interrupted; go on with" in errors
    records = ResultsFolder(tmp_path / "out").records()
    assert {record.arm for record in records} == {"ddp", "ddp-control"}
    for record in records:
        assert not record.complete
        assert record.status == "ok"
        assert record.blocks
    assert (tmp_path / "out" / "report.html").is_file()


def test_a_killed_driver_leaves_nothing_behind(tmp_path):
    """Not even frozen ranks: their wardens see the driver go. The fixture counts what is left."""
    process = begin(tmp_path)
    wait_for_blocks(process)
    assert len(started_processes()) > 6
    process.kill()
    process.wait(10)


@needs_horovod
def test_a_killed_horovod_rank_is_told_with_its_launcher(tmp_path):
    arms = {"ddp": {"backend": "ddp"}, "horovod": {"backend": "horovod", "transport": "gloo"}}
    process = begin(tmp_path, arms=arms)
    try:
        wait_for_blocks(process)
        folder = ResultsFolder(tmp_path / "out")
        ranks = [p for p in started_processes() if p.cmdline()[1:3] == ["-m", "runners.worker"] and "horovod" in p.cmdline()]
        assert len(ranks) == 2
        ranks[0].kill()
        time.sleep(8)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    records = {record.arm: record for record in folder.records()}
    assert records["horovod"].status == "failed"
    assert "died" in records["horovod"].error.message
    assert records["ddp"].status == "ok"
    assert len(records["ddp"].blocks) > len(records["horovod"].blocks)
