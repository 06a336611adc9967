"""A real study: one and two ranks, resumed, its reports rebuilt."""

from __future__ import annotations

import pytest

from tests.kit.comparisons import compare, compare_plan

pytestmark = pytest.mark.usefixtures("no_processes_left")

STRONG = {
    "arms": ["ddp", "single"],
    "points": {"one": {"world_size": 1}, "two": {"world_size": 2}},
    "scaling": "strong",
}


@pytest.mark.costly
def test_one_and_two_ranks(tmp_path):
    measured = compare(
        tmp_path, **STRONG, measurement={"control": True, "rounds": 2, "local_every": 2}
    )
    done, plan = measured.done, tmp_path / "plan.yaml"
    assert "two (2 of 2), launch 1 of 1" in done.stderr
    ran = {
        name: {record.arm: record for record in measured.folder.point(name).records()}
        for name in STRONG["points"]
    }
    assert {name: set(records) for name, records in ran.items()} == {
        "one": {"ddp", "ddp-control", "single"},
        "two": {"ddp", "ddp-control"},
    }
    for name, records in ran.items():
        for record in records.values():
            assert record.status == "ok", record.error
            sizes = {place.local_batch_size for place in record.ranks}
            assert sizes == {16 if name == "one" else 8}
    assert measured.report["headline"].startswith("ddp at two (2 ranks on ")
    assert "starting" not in compare_plan(plan).done.stderr
