"""A real study: one and two ranks, resumed, its reports rebuilt."""

from __future__ import annotations

import json
import re

import pytest

from measurement.records.results import ResultsFolder
from tests.conftest import FORKED, ringside_here, write_plan

pytestmark = pytest.mark.usefixtures("no_processes_left")

ARMS = {"ddp": {"backend": "ddp", "transport": "gloo", "launcher": FORKED}, "single": {"backend": "single"}}


@pytest.mark.costly
def test_one_and_two_ranks(tmp_path):
    points = {"one": {"world_size": 1}, "two": {"world_size": 2}}
    plan = write_plan(tmp_path, arms=ARMS, points=points, scaling="strong", measurement={"rounds": 2, "local_every": 2})
    done = ringside_here("compare", plan, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "two (2 of 2), launch 1 of 1" in done.stderr
    folder = ResultsFolder(tmp_path / "out")
    ran = {name: {record.arm: record for record in folder.point(name).records()} for name in points}
    assert {name: set(records) for name, records in ran.items()} == {
        "one": {"ddp", "ddp-control", "single"},
        "two": {"ddp", "ddp-control"},
    }
    for name, records in ran.items():
        for record in records.values():
            assert record.status == "ok", record.error
            assert {place.local_batch_size for place in record.ranks} == {16 if name == "one" else 8}
            assert all(block.link_bytes == {} for block in record.blocks)
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    one, two = found["points"]
    assert [arm["status"] for arm in two["arms"]] == ["ok", "ok", "not at this point"]
    alone = next(arm for arm in one["arms"] if arm["name"] == "single")
    for arm in two["arms"][:2]:
        assert arm["scaling_baseline"] == "single at one (single process without wrapper)"
        cores = alone["compute_units"] / arm["compute_units"]
        assert arm["scaling_efficiency"]["value"] == pytest.approx(arm["speed_up"]["value"] * cores)
        assert len(arm["by_rank"]["ranks"]) == 2
    assert one["arms"][0]["by_rank"] is None
    assert re.match(r"ddp at two \(2 ranks on \d+ cores?\): ", found["headline"])

    names = ("comparison.json", "report.md", "report.csv", "report.html")
    every = [tmp_path / "out" / where / name for where in ("", "points/one", "points/two") for name in names]
    before = {path: path.read_bytes() for path in every}
    for path in every:
        path.unlink()
    rebuilt = ringside_here("report", tmp_path / "out")
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert rebuilt.stdout == done.stdout
    assert before == {path: path.read_bytes() for path in every}
    resumed = ringside_here("compare", plan, "-o", tmp_path / "out")
    assert resumed.returncode == 0, resumed.stderr
    assert "starting" not in resumed.stderr
    other = ringside_here("compare", plan, "-o", tmp_path / "out", "--set", "points.two.world_size=1")
    assert other.returncode == 2
    assert "results of another plan" in other.stderr


@pytest.mark.costly
def test_time_to_train_by_ranks(tmp_path):
    """The process without wrapper is the reference at every point, with the point's global batch."""
    points = {"one": {"world_size": 1}, "two": {"world_size": 2}}
    plan = write_plan(
        tmp_path,
        arms=ARMS,
        points=points,
        scaling="strong",
        threads=1,
        local_batch_size=128,
        training={"epochs": 2},
        measurement={"control": False, "local_every": 0},
    )
    done = ringside_here("compare", plan, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    for point in found["points"]:
        assert {arm["name"]: arm["status"] for arm in point["arms"]} == {"ddp": "ok", "single": "ok"}
        assert all(arm["time_to_train_s"]["value"] > 0 for arm in point["arms"])
    assert any(line.startswith("ddp trains to the last epoch in ") for line in found["findings"])
    assert "Time to train" in (tmp_path / "out" / "report.html").read_text()
    assert "seconds to the last epoch" in (tmp_path / "out" / "report.md").read_text()
