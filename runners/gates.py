"""What an arm must pass before it is timed: it computes what it should, and under the same conditions as the others."""

from __future__ import annotations

import time
from collections.abc import Sequence

from measurement.plan import Measurement
from measurement.record import Failure, LaunchRecord, ParityResult
from runners.arm_launch import ArmLaunch, Say
from runners.arm_session import ArmFailed
from runners.fairness import unasked_differences
from runners.job import CheckReport, Command, ParityReport
from runners.parity import judge
from runners.repeater import judge_checks


def open_gates(arms: Sequence[ArmLaunch], *, known: Sequence[ArmLaunch] | None, measurement: Measurement, say: Say) -> None:
    """Parity and fairness: what does not compute the same thing under the same conditions is not timed.

    Args:
        arms: to be let through.
        known: to compare their conditions with, ``arms`` among them; None: each other.
        measurement: the plan's.
        say: tells the user what is being done.
    """

    def pass_gate(arm: ArmLaunch) -> None:
        _pass_gate(arm, measurement)

    for arm in arms:
        if arm.is_running:
            say(f"checking {arm.session.name}")
        arm.attempt(pass_gate)
    _compare_conditions(known or arms)


def _pass_gate(arm: ArmLaunch, measurement: Measurement) -> None:
    session, record = arm.session, arm.record
    session.thaw()
    session.send(Command(do="parity", steps=measurement.parity_steps))
    replies = session.receive(timeout_s=measurement.block_timeout_s)
    found = [report for reply in replies if (report := reply.parity or reply.check)]
    record.parity, record.not_offered = judge_gate(found, steps=measurement.parity_steps)
    record.start_s = time.monotonic() - session.started_s
    session.freeze()
    if not record.parity.passed:
        raise ArmFailed(Failure(message="; ".join(record.parity.failures)), status="wrong")


def judge_gate(reports: Sequence[ParityReport | CheckReport], *, steps: int) -> tuple[ParityResult, dict[str, str]]:
    """All ranks' reports of ``Engine.run_gate``, by rank: the verdict, and which cases of a micro-benchmark are not offered."""
    checks = [report for report in reports if isinstance(report, CheckReport)]
    if checks:
        return judge_checks(checks), checks[0].not_offered
    return judge([report for report in reports if isinstance(report, ParityReport)], steps=steps), {}


def _compare_conditions(arms: Sequence[ArmLaunch]) -> None:
    """Every arm against the first that stands, the baseline where it does.

    An arm of another number of ranks than that is held against the first of as many as itself: those must agree in more.
    """
    standing = sorted((arm for arm in arms if arm.record.status == "ok"), key=lambda arm: arm.record.role != "baseline")
    firsts: dict[int, LaunchRecord] = {}
    for arm in standing:
        first = firsts.setdefault(arm.record.world_size, arm.record)
        if first is arm.record:
            first = standing[0].record
        if first is not arm.record:
            _compare_with(first, arm)


def _compare_with(first: LaunchRecord, arm: ArmLaunch) -> None:
    """The samples of the gate's few steps are the same only among as many ranks."""
    record = arm.record
    if record.world_size == first.world_size and first.parity and record.parity:
        digests = (record.parity.samples_digest, first.parity.samples_digest)
        if digests[0] != digests[1]:
            message = f"consumed other samples than {first.arm} (digest {digests[0]} against {digests[1]})"
            arm.fail(Failure(message=message), status="wrong")
            return
    differences = unasked_differences(first, record)
    if differences:
        arm.fail(Failure(message=f"not comparable with {first.arm}: " + "; ".join(differences)), status="failed")
