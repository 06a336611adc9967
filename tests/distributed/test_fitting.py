"""``fit: memory``: the largest batch that a rank's memory holds is found, kept and timed.

An address-space limit of one rank stands in for a card.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.plugins.wide_batches import ROOM, SAMPLE
from tests.kit.comparisons import compare, compare_plan

pytestmark = pytest.mark.usefixtures("no_processes_left")
WIDE = {
    "workload": f"{Path(__file__).parent / 'plugins' / 'wide_batches.py'}:Wide",
    "local_batch_size": 32,
}
FITTED = {
    "ddp": {"backend": "ddp", "fit": "memory"},
    "naive": {"backend": "naive", "fit": "memory"},
}
ONCE = {"mode": "sequential", "rounds": 1}


@pytest.mark.costly
def test_the_largest_batch_that_one_rank_holds_is_found_timed_and_found_once(tmp_path):
    first = compare(tmp_path, arms=FITTED, measurement=ONCE, **WIDE)
    fitted = first.folder.read_manifest().fitted
    assert fitted.keys() == {"ddp", "naive"} and all(
        32 <= size < ROOM // SAMPLE for size in fitted.values()
    ), fitted
    for name, record in first.records.items():
        assert (record.status, record.local_batch_size) == ("ok", fitted[name])
        assert {rank.local_batch_size for rank in record.ranks} == {fitted[name]}
    assert first.records["naive"].parity.compared_with == "ddp", "in a batch that both took"
    assert "At equal memory" in first.report["headline"]
    assert "does not fit" in first.done.stderr
    again = compare_plan(tmp_path / "plan.yaml", "--set", "measurement.launches=2")
    assert "does not fit" not in again.done.stderr
    assert all(
        record.local_batch_size == fitted[name] for (_, name), record in again.launches.items()
    )


def test_a_rank_that_cannot_hold_its_batch_ends_its_arm_and_the_other_rank_does_not_wait(tmp_path):
    what = {**WIDE, "local_batch_size": 4, "measurement": {"rounds": 1}}
    arms = {"wide": {"backend": "ddp", "local_batch_size": 256}, "ddp": "ddp"}
    failed = compare(tmp_path, arms=arms, **what, code=1)
    assert failed.statuses == {"wide": "failed", "ddp": "ok"}
    message = failed.records["wide"].error.message
    assert "rank 1: " in message and "can't allocate memory" in message


@pytest.mark.costly
def test_a_search_ends_where_the_data_does(tmp_path):
    limited = {"workload": "digits", "workload_options": {}, "local_batch_size": 512}
    found = compare(tmp_path, arms=FITTED, measurement=ONCE, code=2, **limited)
    said = found.done.stderr
    assert "no largest local_batch_size was found for arm 'ddp': 1024 failed, and not for" in said
    assert "is more than the 1437 training samples" in said
