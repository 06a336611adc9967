"""Interruptions before a comparison measures: the signal's exit code, and how to go on."""

from __future__ import annotations

import shlex
import signal

import pytest

from tests.conftest import wait_until, write_plan
from tests.kit.commands import started

pytestmark = pytest.mark.usefixtures("no_processes_left")

SLOW_TO_LOAD = """
import time
from pathlib import Path

Path(__file__).with_suffix(".loading").touch()
time.sleep(300)
"""


def test_an_interruption_before_the_first_launch_has_its_exit_code_and_its_line(tmp_path):
    """Other signals have theirs: ``test_nothing_is_lost``."""
    (tmp_path / "slow.py").write_text(SLOW_TO_LOAD)
    plan = write_plan(tmp_path, workload=f"{tmp_path / 'slow.py'}:Slow")
    short = ["--set", "measurement={launches: 1, block_s: 0.2}", "--max-minutes", "60.0"]
    asked = ["compare", str(plan), "-o", str(tmp_path / "my out"), *short]
    with started(*asked) as process:
        wait_until((tmp_path / "slow.loading").exists, seconds=120)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    again = shlex.join(["ringside", *asked])
    assert told.splitlines() == [f"ringside: interrupted; go on with: {again}"], (
        "what is refused for another digest is no advice"
    )
