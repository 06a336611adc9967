"""What an arm must pass for its timing to count: the same conditions as the other arms, correct gradients, the same work.

The parity gate builds models of its own. What they leave in the process's memory makes the ranks' page faults fewer than those of a
user's training (docs/decisions/0010), so blocks are timed first, and the gate is taken when they are over. Before an arm trains to
the end, or a micro-benchmark's cases, it comes first: hours may be lost there, and which cases an arm offers must be known.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from measurement.conditions.differences import arm_differences, own_work
from measurement.plans.plan import Measurement
from measurement.records.record import LaunchRecord
from runners.driver.arm_session import ArmRun, Say
from runners.driver.diagnosis import ArmFailed
from runners.protocol.gate_verdict import NOT_REPEATABLE, compare_state, drift_between, judge_gate
from runners.protocol.messages import DriftReport, GateCommand, GateReply, ParityReport

GATE_RUNS = 3
"""How many blocks' time the gate may take: its runs of a step each have a workload of their own, which loads its data again."""


def run_gates(arms: Sequence[ArmRun], *, known: Sequence[ArmRun], measurement: Measurement, after_blocks: bool, say: Say) -> None:
    """Let each arm take the parity gate, then compare what all ``known`` arms did in it; what fails does not count."""
    for arm in arms:
        if arm.is_running:
            say(f"checking {arm.session.name}")
        arm.run_unless_failed(partial(_pass_gate, measurement=measurement, after_blocks=after_blocks))
        _return_memory()
    for first, arm in _with_reference(known):
        if first.record.world_size == arm.record.world_size:
            try:
                with _judging():
                    _compare_work(first, arm)
            except ArmFailed as failed:
                arm.fail(failed)


def _return_memory() -> None:
    """Have the C library return what is free to the system: what a thousand ranks report takes hundreds of megabytes."""
    with contextlib.suppress(AttributeError, OSError):  # it is glibc's
        ctypes.CDLL(None).malloc_trim(0)


def gate_fails_for_all(records: Sequence[LaunchRecord]) -> bool:
    """Whether every arm of a launch failed in the gate, as it would in the next launch; ``records``: of all its arms."""
    errors = [(record.status, record.error) for record in records if record.role != "floor"]
    return bool(errors) and all(
        status == "wrong" or (error is not None and NOT_REPEATABLE in error.message) for status, error in errors
    )


@contextmanager
def _judging() -> Iterator[None]:
    """A context in which a judge that fails on what an arm reports is this arm's failure and no other's."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"what its ranks found in the gate could not be judged ({type(error).__name__}: {error}); please report this"
        raise ArmFailed(message) from error


def require_together(reports: Sequence[DriftReport | None]) -> None:
    """Raise ``ArmFailed`` where an arm's ranks have drifted apart in the steps that were measured; reports by rank."""
    apart = drift_between(reports)
    if apart:
        raise ArmFailed(apart, status="wrong")


def compare_conditions(arms: Sequence[ArmRun]) -> None:
    """Fail each arm whose versions, cores, threads or seeds are other than the first one's, unless the plan asked for that."""
    for first, arm in _with_reference(arms):
        rows, own = arm_differences([first.conditions, arm.conditions]), own_work([first.record, arm.record])
        refused = [row.sentence for row in rows if not (row.allowed or (row.changes_work and own))]
        if refused:
            arm.fail(ArmFailed(f"not comparable with {first.record.arm}: {'; '.join(refused)}"))


def _pass_gate(arm: ArmRun, *, measurement: Measurement, after_blocks: bool) -> None:
    command = GateCommand(after_blocks=after_blocks, counts_flops=arm.record.launch == 0)
    done = arm.session.exchange(command, GateReply, timeout_s=GATE_RUNS * measurement.block_timeout_s)
    reports = [reply.report for reply in done.replies]
    arm.gate = reports[0] if isinstance(reports[0], ParityReport) else None
    arm.record.flops = arm.gate.flops if arm.gate else None
    with _judging():
        arm.record.parity, arm.record.not_offered = judge_gate(reports)
    if not arm.record.parity.passed:
        raise ArmFailed("; ".join(arm.record.parity.failures), status="wrong")


def _with_reference(arms: Sequence[ArmRun]) -> list[tuple[ArmRun, ArmRun]]:
    """Every arm that is ok, after the one it is compared with: the baseline if possible.

    An arm with another number of ranks is compared with the first of as many ranks as itself, since these must agree in more.
    """
    standing = sorted((arm for arm in arms if arm.record.status == "ok"), key=lambda arm: arm.record.role != "baseline")
    firsts: dict[int, ArmRun] = {}
    pairs = []
    for arm in standing:
        first = firsts.setdefault(arm.record.world_size, arm)
        pairs.append((standing[0] if first is arm else first, arm))
    return [(first, arm) for first, arm in pairs if first is not arm]


def _compare_work(first: ArmRun, arm: ArmRun) -> None:
    """Fail an arm that took other samples or came to something else in the gate than one of as many ranks.

    Of an arm with work of its own that is noted, and no failure.
    """
    known, found, name = first.record.parity, arm.record.parity, first.record.arm
    if known is None or found is None:
        return
    has_own_work = bool(own_work([first.record, arm.record]))
    if has_own_work and first.gate and arm.gate and _shapes(first.gate) != _shapes(arm.gate):
        arm.record.unlike_work["model.tensors"] = f"its parameters and buffers have other names or sizes than {name}'s"
        return
    failures: dict[str, list[str]] = {}
    if found.samples_digest != known.samples_digest:
        failures["samples"] = [f"consumed other samples than {name} (digest {found.samples_digest} against {known.samples_digest})"]
    elif first.gate and arm.gate:
        state = compare_state(first.gate, arm.gate, first_arm=name)
        failures["state"] = state.failures
        found.compared_with, found.state_distance = name, state.distance
        found.notes += [note for note in state.notes if note not in found.notes]
    lines = [line for some in failures.values() for line in some]
    if has_own_work:
        arm.record.unlike_work |= {field: "; ".join(some) for field, some in failures.items() if some}
    elif lines:
        found.passed, found.failures = False, lines
        raise ArmFailed("; ".join(lines), status="wrong")


def _shapes(report: ParityReport) -> dict[str, int]:
    return {name: report.sizes[name] for name in report.started}
