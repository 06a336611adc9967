"""The floor, ranks without a library beside real arms: its failure harms nobody.

What it measures: ``test_compare``."""

from __future__ import annotations

import pytest

from measurement.plans.plan import FLOOR
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


@pytest.mark.costly
def test_a_floor_that_fails_is_told_and_harms_nobody(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS_AS_FLOOR)
    ran = compare(
        tmp_path, arms=["ddp", "naive"], workload=f"{tmp_path}/fails.py:Fails", measurement=MEASURED
    )
    assert ran.statuses[FLOOR] == "failed"
    found = ran.report
    assert all(arm["step_terms_s"]["library_overhead"] is None for arm in found["arms"])
    (told,) = [
        line for line in found["warnings"] if line.startswith("The no-op backend (the floor:")
    ]
    assert "failed in 1 launch" in told
    assert "planted" in told
