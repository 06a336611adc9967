"""``ringside run``: where the step of one script goes, and what of it need not be.

Each limit is planted, one at a time."""

from __future__ import annotations

import re

import pytest

from measurement.records.results import ResultsFolder
from tests.conftest import no_process_stays
from tests.distributed.test_scripts import SCRIPTS, cache, ringside_in  # noqa: F401 - no command was tried before
from tests.kit.comparisons import Compared

LIMITS = {
    "slow_data": r"Rank \d waits for data for",
    "late": "Rank 1 .*is a straggler",
    "prints": r"is plants.py:\d+ \(print",
    "metrics": "All ranks wait for exchange|is plants.py",
    "a_thread": "Threads of the script's own run for",
}


def run(tmp_path, *typed, code=0):
    """What is said of a command."""
    with no_process_stays():
        done = ringside_in(
            SCRIPTS,
            "run",
            *typed,
            "-o",
            tmp_path / "out",
            "--set",
            "measurement.start_timeout_s=200",
        )
    assert done.returncode == code, done.stderr + done.stdout
    return done


@pytest.mark.timeout(600)
@pytest.mark.costly
@pytest.mark.parametrize("plant", LIMITS)
def test_a_planted_limit_is_named_first(tmp_path, plant):
    done = run(
        tmp_path,
        f"torchrun --nproc-per-node 2 plants.py ddp even {plant}",
        "--launches",
        "3",
        "--steps",
        "60",
    )
    found = Compared(done, ResultsFolder(tmp_path / "out")).report
    assert re.search(LIMITS[plant], found["profile"]["findings"][0]), done.stdout
    assert [rank["rank"] for rank in found["profile"]["ranks"]] == [0, 1]
    for rank in found["profile"]["ranks"]:
        assert sum(rank["phases_s"].values()) == pytest.approx(rank["step_s"])
    assert found["results"] == [] and "A step of plants takes" in found["headline"]
