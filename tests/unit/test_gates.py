"""After which outcomes of the gate another launch would end alike."""

from __future__ import annotations

import pytest

from measurement.records.record import Failure
from runners.driver.gates import gate_fails_for_all
from runners.protocol.gate_verdict import NOT_REPEATABLE
from tests.kit.results_factory import make_record


def record(name, *, role="candidate", status="ok", error=None):
    error = Failure(message=error) if error else None
    return make_record(arm=name, role=role, world_size=2, status=status, error=error)


@pytest.mark.parametrize(
    ("outcomes", "is_hopeless"),
    [
        ([("wrong", "a"), ("wrong", "b")], True),
        ([("failed", f"rank 1: {NOT_REPEATABLE}: ..."), ("wrong", "b")], True),
        ([("failed", "rank 1 died without reporting an error"), ("wrong", "b")], False),
        ([("ok", None), ("wrong", "b")], False),
    ],
)
def test_no_launch_follows_one_in_which_no_arm_passed(outcomes, is_hopeless):
    records = [
        record(str(number), status=status, error=error)
        for number, (status, error) in enumerate(outcomes)
    ]
    floor = record("floor", role="floor")
    assert gate_fails_for_all([*records, floor]) == is_hopeless
    assert not gate_fails_for_all([floor])
