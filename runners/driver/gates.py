"""What an arm must pass for its timing to count: the same conditions as the other arms, correct
gradients, the same work.

The parity gate builds its own models. The memory that they leave to the process spares later steps
page faults, which a user's training has (docs/decisions/0010). So blocks are timed before the gate.
A training to the end comes after it, since hours may be lost there. So do a micro-benchmark's
cases, since the gate says which of them an arm offers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from measurement.conditions.differences import arm_differences, own_work
from measurement.plans.sections import Measurement
from runners.protocol.gate_verdict import compare_state, drift_between, judge_gate
from runners.protocol.messages import DriftReport, GateCommand, GateReply, ParityReport
from runners.session.arm_run import ArmRun, Say
from runners.session.diagnosis import ArmFailed

GATE_RUNS = 3
"""How many blocks' time the gate may take: each of its runs makes a workload, which loads its data
again."""


def run_gates(
    arms: Sequence[ArmRun],
    *,
    compared: Sequence[ArmRun],
    measurement: Measurement,
    after_blocks: bool,
    say: Say,
) -> None:
    """Let each arm take the parity gate, then compare the work of all ``compared`` arms.

    Arms that fail do not count.
    """
    for arm in arms:
        if arm.is_running:
            say(f"checking {arm.session.name}")
        arm.run_unless_failed(
            partial(_pass_gate, measurement=measurement, after_blocks=after_blocks)
        )
    for first, arm in _with_reference(compared):
        if first.record.world_size == arm.record.world_size:
            try:
                _compare_work(first, arm)
            except ArmFailed as failed:
                arm.fail(failed)


def require_together(reports: Sequence[DriftReport | None]) -> None:
    """Raise ``ArmFailed`` if an arm's ranks have drifted apart in the measured steps; reports by
    rank.
    """
    drift = drift_between(reports)
    if drift:
        raise ArmFailed(drift, status="wrong")


def compare_conditions(arms: Sequence[ArmRun]) -> None:
    """Fail each arm whose versions, cores, threads or seeds differ from the first one's, unless the
    plan allows it.
    """
    for first, arm in _with_reference(arms):
        has_own_work = own_work([first.record, arm.record])
        refused = [
            row.sentence
            for row in arm_differences([first.conditions, arm.conditions])
            if not (row.allowed or (row.changes_work and has_own_work))
        ]
        if refused:
            arm.fail(ArmFailed(f"not comparable with {first.record.arm}: {'; '.join(refused)}"))


def _pass_gate(arm: ArmRun, *, measurement: Measurement, after_blocks: bool) -> None:
    command = GateCommand(after_blocks=after_blocks, counts_flops=arm.record.launch == 0)
    done = arm.session.exchange(
        command, GateReply, timeout_s=GATE_RUNS * measurement.block_timeout_s
    )
    reports = [reply.report for reply in done.replies]
    arm.gate = reports[0] if isinstance(reports[0], ParityReport) else None
    arm.record.flops = arm.gate.flops if arm.gate else None
    arm.record.parity, arm.record.not_offered = judge_gate(reports)
    if not arm.record.parity.passed:
        raise ArmFailed("; ".join(arm.record.parity.failures), status="wrong")


def _with_reference(arms: Sequence[ArmRun]) -> Iterator[tuple[ArmRun, ArmRun]]:
    """Every arm that is ok, each after its reference: the baseline if possible.

    An arm with another number of ranks has the first arm of as many ranks as reference, since these
    must agree in more.
    """
    passing = sorted(
        (arm for arm in arms if arm.record.status == "ok"),
        key=lambda arm: arm.record.role != "baseline",
    )
    firsts: dict[int, ArmRun] = {}
    for arm in passing:
        first = firsts.setdefault(arm.record.world_size, arm)
        if first is arm:
            first = passing[0]
        if first is not arm:
            yield first, arm


def _compare_work(first: ArmRun, arm: ArmRun) -> None:
    """Fail an arm whose samples or state in the gate differ from those of an arm of as many ranks.

    If an arm has its own workload, differences are noted and are no failure.
    """
    expected, parity, name = first.record.parity, arm.record.parity, first.record.arm
    if expected is None or parity is None:
        return
    has_own_work = bool(own_work([first.record, arm.record]))
    if has_own_work and first.gate and arm.gate and _shapes(first.gate) != _shapes(arm.gate):
        arm.record.unlike_work["model.tensors"] = (
            f"its parameters and buffers have other names or sizes than {name}'s"
        )
        return
    compared, failures = "samples", list[str]()
    if parity.samples_digest != expected.samples_digest:
        failures = [f"consumed other samples than {name}"]
    elif first.gate and arm.gate:
        state = compare_state(first.gate, arm.gate, first_arm=name)
        compared, failures = "state", state.failures
        parity.compared_with, parity.state_distance = name, state.distance
        parity.notes += [note for note in state.notes if note not in parity.notes]
    if failures and has_own_work:
        arm.record.unlike_work[compared] = "; ".join(failures)
    elif failures:
        parity.passed, parity.failures = False, failures
        raise ArmFailed("; ".join(failures), status="wrong")


def _shapes(report: ParityReport) -> dict[str, int]:
    return {name: report.sizes[name] for name in report.started}
