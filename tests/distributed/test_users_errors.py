"""What a user reads when their own code fails in a rank: the error, their line and those around,
and where the traceback lies."""

from __future__ import annotations

import pytest

from tests.conftest import REPOSITORY
from tests.kit.commands import TORCHRUN_DDP, run, run_python

pytestmark = pytest.mark.usefixtures("no_processes_left")
IDIOMS = REPOSITORY / "tests" / "outside" / "idioms.py"
LINE = 'raise OSError(f"sample {index} is damaged")'


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


@pytest.mark.parametrize(
    ("raised", "last"),
    [
        ('OSError("sample 60 is damaged")', "OSError: sample 60 is damaged"),
        ('SystemExit("no licence")', "LaunchError: the workload called sys.exit('no licence')"),
    ],
)
def test_the_traceback_is_logged_before_the_driver_ends_the_rank(raised, last):
    done = run_python(
        RANK_OF_A_HASTY_DRIVER.replace('OSError("sample 60 is damaged")', raised), timeout=60
    )
    assert done.returncode == 9
    assert done.stderr.startswith("Traceback") == raised.startswith("OSError")
    assert done.stderr.endswith(f"{last}\n")


@pytest.mark.costly
def test_an_exception_in_a_run_of_ones_own(tmp_path):
    command, runner = TORCHRUN_DDP
    short = [
        "--local-batch-size",
        "4",
        "--blocks",
        "9",
        "--block-steps",
        "3",
        "--warmup-steps",
        "1",
    ]
    done = run(
        *command,
        "-m",
        f"runners.{runner}",
        "--workload",
        f"{IDIOMS}:RaisesInLoader",
        *short,
        "-o",
        tmp_path / "out",
    )
    assert done.returncode != 0
    ours = [line for line in done.stderr.splitlines() if line.startswith("ringside: ")]
    assert all(
        ": OSError: sample 60 is damaged (in a loader process), at " in line for line in ours
    )
    rank = int(ours[0].split()[2])
    assert LINE in done.stderr
    path = tmp_path / "out" / f"rank-{rank}-traceback.txt"
    assert f"full traceback: {path}" in done.stderr
    assert "Traceback" in path.read_text()
    assert "Traceback" not in done.stderr.partition("torch/distributed/elastic")[0], (
        "what torchrun adds is its own"
    )
