"""What an arm must pass before it is timed: correct gradients, and the same conditions as the other arms."""

from __future__ import annotations

import time
from collections.abc import Sequence

from measurement.fairness import unasked_differences
from measurement.plan import Measurement
from measurement.record import Failure
from runners.driver.arm_launch import ArmLaunch, Say
from runners.driver.arm_session import ArmFailed
from runners.protocol.gate_verdict import judge_gate
from runners.protocol.messages import GateCommand, GateReply, ParityReport
from runners.protocol.same_work import compare_calls, compare_state, drops_step_hooks


def open_gates(arms: Sequence[ArmLaunch], *, known: Sequence[ArmLaunch] | None, measurement: Measurement, say: Say) -> None:
    """Let each arm take the parity gate, then compare conditions; what fails is not timed.

    Args:
        arms: those that have not passed yet.
        known: all arms whose conditions are to be equal, ``arms`` among them; None: ``arms``.
        measurement: the plan's.
        say: tells the user what is being done.
    """

    def pass_gate(arm: ArmLaunch) -> None:
        _pass_gate(arm, measurement)

    for arm in arms:
        if arm.is_running:
            say(f"checking {arm.session.name}")
        arm.run_unless_failed(pass_gate)
    _compare_conditions(known or arms, steps=measurement.parity_steps)


def _pass_gate(arm: ArmLaunch, measurement: Measurement) -> None:
    session, record = arm.session, arm.record
    session.thaw()
    session.send(GateCommand(steps=measurement.parity_steps))
    replies = session.receive(GateReply, timeout_s=measurement.block_timeout_s)
    reports = [reply.report for reply in replies]
    record.parity, record.not_offered = judge_gate(reports, steps=measurement.parity_steps)
    arm.gate = reports[0] if isinstance(reports[0], ParityReport) else None
    record.start_s = time.monotonic() - session.started_s
    session.freeze()
    if not record.parity.passed:
        raise ArmFailed(Failure(message="; ".join(record.parity.failures)), status="wrong")


def _compare_conditions(arms: Sequence[ArmLaunch], *, steps: int) -> None:
    """Compare every arm with the first one that is ok and runs the optimizer's hooks, the baseline if possible.

    An arm with another number of ranks is compared with the first of as many ranks as itself, since these must agree in more.
    """
    standing = sorted((arm for arm in arms if arm.record.status == "ok"), key=_is_worse_reference)
    firsts: dict[int, ArmLaunch] = {}
    for arm in standing:
        first = firsts.setdefault(arm.record.world_size, arm)
        if first is not arm:
            _compare_work(first, arm, steps=steps)
        else:
            first = standing[0]
        if first is not arm and arm.record.status == "ok":
            differences = unasked_differences(first.record, arm.record)
            if differences:
                message = f"not comparable with {first.record.arm}: " + "; ".join(differences)
                arm.fail(Failure(message=message), status="failed")


def _is_worse_reference(arm: ArmLaunch) -> tuple[bool, bool]:
    parity = arm.record.parity
    return parity is not None and drops_step_hooks(parity.calls), arm.record.role != "baseline"


def _compare_work(first: ArmLaunch, arm: ArmLaunch, *, steps: int) -> None:
    """Fail an arm that took other samples, called other things or came to something else in the gate than one of as many ranks."""
    known, found = first.record.parity, arm.record.parity
    if known is None or found is None:
        return
    failures = []
    if found.samples_digest != known.samples_digest:
        digests = f"digest {found.samples_digest} against {known.samples_digest}"
        failures = [f"consumed other samples than {first.record.arm} ({digests})"]
    elif first.gate and arm.gate:
        failures = compare_calls(known.calls, found.calls, first_arm=first.record.arm, steps=steps)
        state = compare_state(first.gate, arm.gate, first_arm=first.record.arm, steps=steps)
        failures += state.failures
        found.compared_with, found.state_distance = first.record.arm, state.distance
        found.notes += [note for note in state.notes if note not in found.notes]
    if failures:
        found.passed, found.failures = False, failures
        arm.fail(Failure(message="; ".join(failures)), status="wrong")
