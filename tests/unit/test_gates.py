"""The driver's side of the gate, with ranks that answer at once: whose failure it is, and what goes
on after it."""

from __future__ import annotations

import pytest

from measurement.plans.measuring import Measurement
from measurement.records.record import Failure
from runners.driver.gates import gate_fails_for_all, run_gates
from runners.protocol.gate_verdict import NOT_REPEATABLE
from runners.protocol.messages import GateReply
from runners.session.arm_run import ArmRun, Exchange
from tests.kit.changed import changed
from tests.kit.parity_reports import reports
from tests.kit.results_factory import make_record


def report(rank, **changes):
    return changed(reports(2)[rank], **changes)


class Session:
    """Ranks whose reports are given."""

    exit_codes: tuple[int, ...] = ()

    def __init__(self, name, reports):
        self.name, self.reports, self.is_ended = name, reports, False

    def exchange(self, command, expected, *, timeout_s):
        return Exchange(
            replies=[GateReply.model_construct(report=report) for report in self.reports],
            took_s=0,
            hosts={},
        )

    def end(self):
        self.is_ended = True


def arm(name, reports, *, role="candidate", status="ok", error=None):
    error = Failure(message=error) if error else None
    record = make_record(arm=name, role=role, world_size=2, status=status, error=error)
    return ArmRun(session=Session(name, reports), job=None, record=record, say=lambda text: None)


def opened(*arms):
    run_gates(
        arms, compared=arms, measurement=Measurement(), after_blocks=True, say=lambda text: None
    )
    return {arm.record.arm: arm.record for arm in arms}


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
        arm(str(number), [], status=status, error=error).record
        for number, (status, error) in enumerate(outcomes)
    ]
    floor = arm("floor", [], role="floor").record
    assert gate_fails_for_all([*records, floor]) == is_hopeless
    assert not gate_fails_for_all([floor])
