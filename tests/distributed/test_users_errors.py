"""What a user reads when their own code fails in a rank: the error, their line and those around, and where the traceback lies."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import REPOSITORY
from tests.kit.commands import TORCHRUN_DDP, run
from tests.kit.comparisons import compare

pytestmark = pytest.mark.usefixtures("no_processes_left")
IDIOMS = REPOSITORY / "tests" / "outside" / "idioms.py"
LINE = 'raise OSError(f"sample {index} is damaged")'


@pytest.mark.costly
def test_an_exception_in_a_comparison(tmp_path):
    ran = compare(tmp_path, workload=f"{IDIOMS}:RaisesInLoader", local_batch_size=4, code=1)
    assert ran.statuses == {"ddp": "failed", "ddp-control": "failed"}
    record = ran.records["ddp"]
    assert record.error.message.startswith(
        f"rank {record.error.ranks[0]}: OSError: sample 60 is damaged (in a loader process), at "
    )
    assert "idioms.py:" in record.error.message
    assert any(line.lstrip().startswith(">") and LINE in line for line in record.error.excerpt)
    log = tmp_path / "out" / "launch-000" / "ddp" / f"rank-{record.error.ranks[0]}.log"
    said = " ".join(ran.done.stderr.split())
    assert LINE in said
    assert "Traceback" in log.read_text()
    assert "the rank's whole log: " in said and log.name in said
    assert LINE in ran.read("report.html").replace("&#34;", '"')


RANK_OF_A_HASTY_DRIVER = """
import os
from measurement.agent.ringside_agent.agent import Agent
from runners.rank.worker import serve

class Channel:
    outstanding = 0
    def receive(self):
        return b'{"do": "start"}'
    def reply(self, text):
        os._exit(9)

def start(command):
    raise OSError("sample 60 is damaged")

serve(Agent(Channel()), {"start": start})
"""
"""It is ended as soon as it has told of its error."""


def test_the_traceback_is_logged_before_the_driver_ends_the_rank():
    done = run(sys.executable, "-c", RANK_OF_A_HASTY_DRIVER, timeout=60)
    assert done.returncode == 9
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("OSError: sample 60 is damaged\n")


def test_a_driver_hears_of_a_rank_that_leaves_by_sys_exit():
    leaving = RANK_OF_A_HASTY_DRIVER.replace('raise OSError("sample 60 is damaged")', 'raise SystemExit("no licence")')
    done = run(sys.executable, "-c", leaving, timeout=60)
    assert done.returncode == 9
    assert done.stderr.endswith("LaunchError: the process was ended by sys.exit('no licence'), which is not ours\n")


@pytest.mark.costly
def test_an_exception_in_a_run_of_ones_own(tmp_path):
    command, runner = TORCHRUN_DDP
    short = ["--local-batch-size", "4", "--blocks", "9", "--block-steps", "3", "--warmup-steps", "1"]
    done = run(*command, "-m", f"runners.{runner}", "--workload", f"{IDIOMS}:RaisesInLoader", *short, "-o", tmp_path / "out")
    assert done.returncode != 0
    ours = [line for line in done.stderr.splitlines() if line.startswith("ringside: ")]
    assert all(": OSError: sample 60 is damaged (in a loader process), at " in line for line in ours)
    rank = int(ours[0].split()[2])
    assert LINE in done.stderr
    path = tmp_path / "out" / f"rank-{rank}-traceback.txt"
    assert f"full traceback: {path}" in done.stderr
    assert "Traceback" in path.read_text()
    assert "Traceback" not in done.stderr.partition("torch/distributed/elastic")[0], "what torchrun adds is its own"
