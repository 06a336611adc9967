"""A golden result: the first steps of a command at an earlier date, which later ones are compared
with without running it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from measurement.errors import PlanError
from measurement.files import read_text
from measurement.plans.plan import Plan
from measurement.plans.sections import SCRIPT, Arm, Measurement
from measurement.records import Written
from measurement.records.record import LaunchRecord, ScriptReport
from measurement.records.results import write_result
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
    """Store the first steps of the baseline; raises a ``PlanError`` where there are none."""
    baseline, control = (_first(records, arm) for arm in (plan.baseline, plan.control_name))
    if baseline is None:
        raise PlanError(f"no golden result: {plan.baseline} took no step that could be read")
    golden = Golden(
        command=str(plan.arms[plan.baseline].command),
        scripts=baseline.scripts,
        control=tuple(control.scripts if control else ()),
    )
    write_result(file, golden.model_dump_json(exclude_defaults=True))


def _first(records: Sequence[LaunchRecord], arm: str) -> LaunchRecord | None:
    return next((record for record in records if record.arm == arm and record.scripts), None)


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
    measured = _first(records, arm)
    if measured is None:
        sentence = f"{arm} took no step that could be read"
        return Equality(loss_margin=0.0, unequal=[arm], sentence=sentence), []
    command = Arm(command=golden.command)
    plan = Plan(
        name=GOLDEN,
        baseline=GOLDEN,
        arms={GOLDEN: command, arm: command},
        measurement=Measurement(control=bool(golden.control), floor=False, local_every=0),
        world_size=measured.world_size,
        workload=SCRIPT,
    )
    compared = [
        measured.model_copy(update={"arm": name, "role": plan.role(name), "scripts": scripts})
        for name, scripts in (
            (GOLDEN, golden.scripts),
            (plan.control_name, golden.control),
            (arm, measured.scripts),
        )
        if scripts
    ]
    now, then = measured.scripts[0].configuration, golden.scripts[0].configuration
    changes = [
        f"{field} was {then.get(field)}, and is {now.get(field)}"
        for field in sorted({**then, **now})
        if field.startswith(HOLDS_FOR) and then.get(field) != now.get(field)
    ]
    return judge_equality(plan, compared), changes
