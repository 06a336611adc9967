"""The tables of scripts: what they do differently, and whether they train alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from measurement.conditions.conditions import Severity
from measurement.conditions.differences import Difference, shown
from reports.parts_schema import LossEquality, ParameterEquality
from reports.schema import Comparison
from reports.tables.figures import arm_rows
from reports.tables.table import Column, Entry, Kind, Table, table
from reports.wording.formatting import NONE

SEVERITY_WORDS: dict[Severity, str] = {
    "mistake": "check this",
    "work": "other work",
    "training": "other training",
    "speed": "speed alone",
}
KINDS: dict[str, Kind] = {
    "equal": "same",
    "equal up to rounding": "same",
    "apart": "differs",
    "another start": "differs",
    "no worse": "same",
    "worse": "differs",
    "undecided": "undecided",
    "mistake": "differs",
    "work": "undecided",
}
"""How verdicts and severities look."""


def differences_table(differences: Sequence[Difference], *, in_words: bool = True) -> Table:
    """One row for each field: its value in every arm, and what the difference means. Arms are columns named like them."""
    arms = dict.fromkeys(arm for one in differences for arm in one.values)
    columns = [
        Column("setting", "field", wraps=True),
        *(Column(arm, partial(_value, arm), wraps=True) for arm in arms),
        Column("", _meaning, wraps=True),
        *([Column("in words", "sentence", wraps=True)] if in_words else []),
    ]
    return table(columns, differences)


def _value(arm: str, one: Difference) -> str:
    return shown(one.values[arm]) if arm in one.values else ""


def _meaning(one: Difference) -> Entry:
    """How much it matters, and who asked for it."""
    if one.severity == "note":
        return Entry(text="comes with the library" if one.is_default else "asked for" if one.allowed else "follows from others")
    work = ", other work" if one.changes_work and one.severity != "work" else ""
    asked = ", a default" if one.is_default else ", allowed" if one.allowed else ""
    return Entry(text=f"{SEVERITY_WORDS[one.severity]}{work}{asked}", kind=KINDS.get(one.severity, "plain"))


def _judged(verdict: str, distance: float | None, where: str = "") -> Entry:
    apart = f" ({distance:.1e})" if distance else ""
    return Entry(text=f"{verdict}{where}{apart}", kind=KINDS.get(verdict, "plain"))


def _parameters(found: ParameterEquality) -> Entry:
    after = found.first_difference_step or len(found.distances)
    last = found.distances[after - 1] if found.distances else None
    steps = f" from step {after} on" if found.verdict == "apart" else f" over {after} steps" if after else ""
    return _judged(found.verdict, last, steps)


def _loss(loss: LossEquality) -> Entry | str:
    if loss.verdict is None:
        return NONE
    difference = "" if loss.difference is None else f" ({loss.difference.value:+.2%})"
    return Entry(text=f"{loss.verdict}{difference}", kind=KINDS[loss.verdict])


EQUALITY = (
    Column("arm", "arm", wraps=True),
    Column("start", "start", lambda start: _judged(start.verdict, start.distance), wraps=True),
    Column("gradients of step 1", "gradients", lambda found: _judged(found.verdict, found.distance), wraps=True),
    Column("parameters", "parameters", _parameters, wraps=True),
    Column("loss", "loss", _loss, wraps=True),
)


def equality_table(comparison: Comparison) -> Table:
    """One row for each arm but the baseline. No rows without scripts."""
    arms = comparison.equality.start if comparison.equality else {}
    return table(EQUALITY, [{"arm": row.arm.name, **row.equality} for row in arm_rows(comparison) if row.arm.name in arms])
