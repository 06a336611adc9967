"""What a user reads when their own code fails in a rank: the error, their line and those around,
and where the traceback lies."""

from __future__ import annotations

import pytest

from tests.conftest import REPOSITORY
from tests.distributed.ranks import hasty
from tests.kit.commands import TORCHRUN_DDP, run, warm

pytestmark = pytest.mark.usefixtures("no_processes_left")
IDIOMS = REPOSITORY / "tests" / "outside" / "idioms.py"
LINE = 'raise OSError(f"sample {index} is damaged")'


@pytest.mark.parametrize(
    ("raised", "last"),
    [
        ("error", "OSError: sample 60 is damaged"),
        ("exit", "LaunchError: the workload called sys.exit('no licence')"),
    ],
)
def test_the_traceback_is_logged_before_the_driver_ends_the_rank(raised, last):
    done = run(*warm("-m", hasty.__name__), raised)
    assert done.returncode == 9
    assert done.stderr.startswith("Traceback") == (raised == "error")
    assert done.stderr.endswith(f"{last}\n")


@pytest.mark.costly
def test_an_exception_in_a_run_of_ones_own(tmp_path):
    command, runner = TORCHRUN_DDP
    short = "--local-batch-size 4 --blocks 9 --block-steps 3 --warmup-steps 1"
    what = f"-m runners.{runner} --workload {IDIOMS}:RaisesInLoader {short} -o {tmp_path / 'out'}"
    done = run(*command, *what.split())
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
