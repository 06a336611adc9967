"""The parity gate and the conditions of arms, on real ranks: what computes wrongly is wrong, and
its timing counts for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.schema import Comparison
from tests.conftest import no_process_stays
from tests.kit.comparisons import compare

pytestmark = pytest.mark.usefixtures("no_processes_left")
WRONG = Path(__file__).parent / "plugins" / "wrong.py"


WRONGLY = {
    "SkipsOneParameter": "gradient of 'classify.bias' is off by",
    "SameShardEverywhere": "ranks 0 and 1 consumed the same samples",
}
"""What is said of each backend that computes wrongly; ``test_planted`` has more of them, for every
kind of model."""


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """A comparison of them all with one that is right, one that is unfair."""
    arms = {name.lower(): f"{WRONG}:{name}" for name in [*WRONGLY, "Unfair"]}
    with no_process_stays():
        return compare(tmp_path_factory.mktemp("gate"), arms={"ddp": "ddp", **arms}, code=1)


def test_the_right_one_is_timed(gated):
    assert gated.statuses["ddp"] == "ok"
    assert len(gated.folder.steps(gated.records["ddp"])) > 0


@pytest.mark.parametrize("name", WRONGLY)
def test_every_wrong_backend_is_caught_and_its_timing_counts_for_nothing(gated, name):
    """Its steps are kept, for whoever wants to look."""
    record = gated.records[name.lower()]
    assert record.status == "wrong", record.error
    assert WRONGLY[name] in record.error.message
    assert len(gated.folder.steps(record)) > 0
    found = Comparison.model_validate(gated.report)
    assert (found.arm(record.arm).status, found.arm(record.arm).throughput_per_s) == ("wrong", None)
    assert found.result(record.arm).throughput_ratio is None


def test_an_unasked_difference_is_an_error(gated):
    record = gated.records["unfair"]
    assert record.status == "failed"
    assert "threads: 1 in ddp, 2 in unfair" in record.error.message
