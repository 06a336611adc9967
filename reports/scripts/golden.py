"""A golden result: the first steps of a command at an earlier date, which later ones are compared
with without running it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from measurement.errors import PlanError
from measurement.files import read_text, write_whole
from measurement.plans.arm import SCRIPT, Arm
from measurement.plans.measuring import Measurement
from measurement.plans.plan import Plan
from measurement.records.record import LaunchRecord
from measurement.records.record_types import Written
from measurement.records.script_report import ScriptReport
from reports.parts_schema import Equality
from reports.scripts.equality import judge_equality

GOLDEN = "golden"
"""The name of the stored arm in sentences."""
HOLDS_FOR = ("version.", "device", "gpu", "world_size", "threads.torch")
"""How settings begin for which a stored result holds: another one computes otherwise, or in another
order."""


class Golden(Written):
    """The first steps of a command, and of its control."""

    command: str
    scripts: list[ScriptReport]
    """By rank."""
    control: tuple[ScriptReport, ...] = ()
    """Those of the same command once more; empty where there was none."""


def write_golden(file: Path, plan: Plan, records: Sequence[LaunchRecord]) -> None:
    """Store the first steps of the baseline; raises a ``PlanError`` where there are none, or the
    file cannot be written.
    """
    scripts = {
        name: next(
            (record.scripts for record in records if record.arm == name and record.scripts), []
        )
        for name in plan.compared_arms()
    }
    if not scripts[plan.baseline]:
        raise PlanError(f"no golden result: {plan.baseline} took no step that could be read")
    command = str(plan.arms[plan.baseline].command)
    golden = Golden(
        command=command,
        scripts=scripts[plan.baseline],
        control=tuple(scripts.get(plan.control_name, [])),
    )
    try:
        write_whole(file, golden.model_dump_json(exclude_defaults=True))
    except OSError as error:
        raise PlanError(f"golden result '{file}' cannot be written: {error}") from error


def read_golden(file: Path) -> Golden:
    """Read one; raises a ``PlanError`` for anything else."""
    try:
        return Golden.model_validate_json(read_text(file))
    except (OSError, ValueError, ValidationError) as error:
        raise PlanError(
            f"'{file}' is no golden result; write one by 'ringside ab COMMAND --write-golden FILE'"
        ) from error


def compare_to_golden(
    golden: Golden, records: Sequence[LaunchRecord], arm: str
) -> tuple[Equality, list[str]]:
    """Whether an arm trains as the stored run, and in what they differ for which the stored one
    holds, a phrase each.
    """
    measured_record = next(
        (record for record in records if record.arm == arm and record.scripts), None
    )
    if measured_record is None:
        return Equality(
            loss_margin=0.0, unequal=[arm], sentence=f"{arm} took no step that could be read"
        ), []
    arms = {GOLDEN: Arm(command=golden.command), arm: Arm(command=golden.command)}
    measured = Measurement(control=bool(golden.control), floor=False, local_every=0)
    plan = Plan.model_validate(
        {
            "name": GOLDEN,
            "baseline": GOLDEN,
            "arms": arms,
            "measurement": measured,
            "world_size": measured_record.world_size,
            "workload": SCRIPT,
        }
    )
    stored = {GOLDEN: golden.scripts, plan.control_name: golden.control}
    roles = {GOLDEN: "baseline", plan.control_name: "control"}
    stored_records = [
        measured_record.model_copy(update={"arm": name, "role": roles[name], "scripts": scripts})
        for name, scripts in stored.items()
        if scripts
    ]
    now, then = measured_record.scripts[0].configuration, golden.scripts[0].configuration
    fields = [
        field
        for field in {**then, **now}
        if field.startswith(HOLDS_FOR) and then.get(field) != now.get(field)
    ]
    equality = judge_equality(
        plan, [*stored_records, measured_record.model_copy(update={"role": "candidate"})]
    )
    losses = [
        (mine.loss, its.loss)
        for mine, its in zip(
            measured_record.scripts[0].steps, golden.scripts[0].steps, strict=False
        )
    ]
    largest = max(
        (
            abs(mine - its) / max(abs(its), 1e-12)
            for mine, its in losses
            if mine is not None and its is not None
        ),
        default=None,
    )
    loss_clause = (
        ""
        if largest is None
        else f"; losses of the first steps differ by at most {largest:.2g} of theirs"
    )
    changes = [
        f"{field} was {then.get(field)}, and is {now.get(field)}" for field in sorted(fields)
    ]
    return equality.model_copy(update={"sentence": f"{equality.sentence}{loss_clause}"}), changes
