"""``ringside run``: where the step of one script goes, and what of it need not be.

Each limit is planted, one at a time."""

from __future__ import annotations

import re

import pytest

from tests.distributed.test_scripts import cache  # noqa: F401 - no command was tried before
from tests.kit.script_comparisons import compare_in
from tests.kit.scripts import SCRIPTS

LIMITS = {
    "slow_data": r"Rank \d waits for data for",
    "late": "Rank 1 .*is a straggler",
    "prints": r"is plants.py:\d+ \(print",
    "metrics": "All ranks wait for exchange|is plants.py",
    "a_thread": "Threads of the script's own run for",
}


@pytest.mark.timeout(600)
@pytest.mark.costly
@pytest.mark.parametrize("plant", LIMITS)
def test_a_planted_limit_is_named_first(tmp_path, plant):
    command = f"torchrun --nproc-per-node 2 plants.py ddp even {plant}"
    short = ("--launches", "3", "--steps", "60", "--set", "measurement.start_timeout_s=200")
    ran = compare_in(SCRIPTS, "run", command, *short, out=tmp_path / "out")
    found = ran.report
    assert re.search(LIMITS[plant], found["profile"]["findings"][0]), ran.done.stdout
    assert [rank["rank"] for rank in found["profile"]["ranks"]] == [0, 1]
    for rank in found["profile"]["ranks"]:
        assert sum(rank["phases_s"].values()) == pytest.approx(rank["step_s"])
    assert found["results"] == [] and "A step of plants takes" in found["headline"]
