"""The floor beside real arms: ranks without a library, blocks without exchange, terms that are told. Its failure harms nobody."""

from __future__ import annotations

import pytest

from measurement.plans.plan import FLOOR
from tests.conftest import HOROVOD, needs_horovod
from tests.kit.comparisons import compare

pytestmark = pytest.mark.usefixtures("no_processes_left")

MEASURED = {"floor": True, "local_every": 1, "rounds": 2}
FAILS_AS_FLOOR = """
from measurement.agent.ringside_agent import settings
from workloads.digits import Digits

class Fails(Digits):
    def build_model(self):
        told = settings.read()
        if told and told.arm == "floor":
            raise RuntimeError("planted")
        return super().build_model()
"""


@needs_horovod
def test_the_floor_has_no_library_and_no_exchange(tmp_path):
    ran = compare(tmp_path, arms={"ddp": "ddp", "horovod": HOROVOD}, measurement=MEASURED)
    assert "starting 2 arms and the no-op backend (the floor), 6 ranks in all" in ran.done.stderr
    floor, horovod, found = ran.records[FLOOR], ran.records["horovod"], ran.report
    assert (floor.status, floor.role, len(floor.ranks)) == ("ok", "floor", 2)
    assert {block.kind for block in floor.blocks} == {"local"}
    assert floor.ranks[0].backend["library"] == "torch"
    assert all(block.threads.library_s == 0 for block in floor.blocks)
    beside = ran.folder.host_use([horovod])
    assert set(beside["turn"].dropna()) == {block.turn for block in horovod.blocks}
    assert set(beside["host"]) == {horovod.ranks[0].host}
    assert all(block.threads.library_s > 0 for block in horovod.blocks if block.kind == "sync")
    assert [arm["name"] for arm in found["arms"]] == ["ddp", "horovod"]
    for arm in found["arms"]:
        terms = arm["step_terms_s"]
        values = [terms[name]["value"] for name in ("compute", "data_wait", "library_overhead", "imbalance", "exposed_exchange")]
        assert sum(values) == pytest.approx(terms["step"]["value"])
    assert set(found["results"][0]["term_differences_s"]) > {"library_overhead", "exposed_exchange"}


@pytest.mark.costly
def test_a_floor_that_fails_is_told_and_harms_nobody(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS_AS_FLOOR)
    ran = compare(tmp_path, arms=["ddp", "naive"], workload=f"{tmp_path}/fails.py:Fails", measurement=MEASURED)
    assert ran.statuses[FLOOR] == "failed"
    found = ran.report
    assert all(arm["step_terms_s"]["library_overhead"] is None for arm in found["arms"])
    (told,) = [line for line in found["warnings"] if line.startswith("The no-op backend (the floor)")]
    assert "failed in 1 launch" in told
    assert "planted" in told


def test_an_arm_must_not_have_its_name(tmp_path):
    refused = compare(tmp_path, arms={"ddp": "ddp", "floor": "naive"}, measurement={"floor": True}, code=2).done.stderr
    assert "arm 'floor' has the name of the arm without any library; rename it or set floor: false" in refused
