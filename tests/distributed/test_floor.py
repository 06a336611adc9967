"""The floor beside real arms: ranks without a library, blocks without exchange, terms that are told. Its failure harms nobody."""

from __future__ import annotations

import json

import pytest

from measurement.plans.plan import FLOOR
from measurement.records.results import ResultsFolder
from tests.conftest import FORKED, needs_horovod, ringside_here, write_plan

pytestmark = pytest.mark.usefixtures("no_processes_left")

MEASURED = {"floor": True, "control": False, "local_every": 1, "rounds": 2, "launches": 1}
FAILS_AS_FLOOR = """
import sys
from workloads.digits import Digits

class Fails(Digits):
    def build_model(self):
        if "floor" in sys.argv:
            raise RuntimeError("planted")
        return super().build_model()
"""


def floors(folder):
    return [record for record in folder.records() if record.arm == FLOOR]


@needs_horovod
def test_the_floor_has_no_library_and_no_exchange(tmp_path):
    arms = {"ddp": {"backend": "ddp"}, "horovod": {"backend": "horovod", "transport": "gloo"}}
    plan = write_plan(tmp_path, arms=arms, measurement=MEASURED)
    done = ringside_here("compare", plan, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "starting 2 arms and the no-op backend (the floor), 6 ranks in all" in done.stderr
    folder = ResultsFolder(tmp_path / "out")
    for record in floors(folder):
        assert (record.status, record.role, len(record.ranks)) == ("ok", "floor", 2)
        assert {block.kind for block in record.blocks} == {"local"}
        assert record.ranks[0].backend["library"] == "torch"
        assert all(block.threads.library_s == 0 for block in record.blocks)
    horovod = [record for record in folder.records() if record.arm == "horovod"]
    beside = folder.host_use(horovod)
    assert set(beside["turn"].dropna()) == {block.turn for record in horovod for block in record.blocks}
    assert set(beside["host"]) == {record.ranks[0].host for record in horovod}
    assert all(block.threads.library_s > 0 for record in horovod for block in record.blocks if block.kind == "sync")
    found = json.loads((folder.root / "comparison.json").read_text())
    assert [arm["name"] for arm in found["arms"]] == ["ddp", "horovod"]
    for arm in found["arms"]:
        terms = arm["step_terms_s"]
        values = [terms[name]["value"] for name in ("compute", "data_wait", "library_overhead", "imbalance", "exposed_exchange")]
        assert sum(values) == pytest.approx(terms["step"]["value"])
    assert set(found["results"][0]["term_differences_s"]) > {"library_overhead", "exposed_exchange"}


@pytest.mark.costly
def test_a_floor_that_fails_is_told_and_harms_nobody(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS_AS_FLOOR)
    arms = {"ddp": {"backend": "ddp", "launcher": FORKED}, "naive": {"backend": "naive", "launcher": FORKED}}
    plan = write_plan(tmp_path, arms=arms, workload=f"{tmp_path}/fails.py:Fails", measurement=MEASURED)
    done = ringside_here("compare", plan, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    folder = ResultsFolder(tmp_path / "out")
    assert [record.status for record in floors(folder)] == ["failed"]
    found = json.loads((folder.root / "comparison.json").read_text())
    assert all(arm["step_terms_s"]["library_overhead"] is None for arm in found["arms"])
    (told,) = [line for line in found["warnings"] if line.startswith("The no-op backend (the floor)")]
    assert "failed in 1 launch" in told
    assert "planted" in told


def test_an_arm_must_not_have_its_name(tmp_path):
    plan = write_plan(tmp_path, arms={"ddp": {"backend": "ddp"}, "floor": {"backend": "naive"}}, measurement={"floor": True})
    done = ringside_here("compare", plan, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "arm 'floor' has the name of the arm without any library; rename it or set floor: false" in done.stderr
