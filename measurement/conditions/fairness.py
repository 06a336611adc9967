"""The fairness manifest: compares what the ranks of the arms report of themselves.

Arms may differ in what defines them: the backend, and what the plan sets for one arm. Everything else must be equal; a difference
that the plan did not ask for makes two arms incomparable. What follows from an arm's own workload, commit or Python was asked for;
where it makes the arm do unlike work, that is told by itself (``work_differences``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from measurement.conditions.conditions import CONDITIONS, OWN_WORK, arm_rule, condition_of
from measurement.conditions.disturbing_variables import Library, disturbances
from measurement.records.record import LaunchRecord, RankReport

OWN_VARIABLES = ("HOROVOD_", "OMPI_", "TORCHELASTIC_", "TORCH_", "NCCL_", "UCX_", "FI_", "KMP_INIT")
"""Variables that launchers and backends set for themselves; all others must be equal in all arms."""


def unasked_differences(first: LaunchRecord, other: LaunchRecord) -> list[str]:
    """Return the differences between two arms that the plan did not ask for, one line each. Pure."""
    found = []
    for field, asked, values in _differences([first, other]):
        if not asked:
            found.append(f"{field} is {values[other.arm]!r}, {first.arm} has {values[first.arm]!r}")
    return found


def own_work(records: Sequence[LaunchRecord]) -> set[str]:
    """In what of their own these arms differ: fields of their records, such as ``commit``. Pure."""
    return {name for name in OWN_WORK if any(getattr(one, name) != getattr(records[0], name) for one in records)}


def work_differences(first: LaunchRecord, other: LaunchRecord) -> dict[str, str]:
    """Return in what the work of two arms differs, as their ranks report it: a phrase by field, such as ``model.parameters``.

    A setting of the optimizer that one release of PyTorch has and the other has not is no difference. Pure.
    """
    found = {}
    for field, _, values in _differences([first, other]):
        condition, is_missing = condition_of(field), None in values.values()
        if (
            condition is None
            or not condition.is_work
            or arm_rule(field) == "own"
            or _follows_from_ranks(field, [first, other], values)
        ):
            continue
        if not (is_missing and field.startswith("optimizer.") and own_work([first, other]) == {"python"}):
            found[field] = f"{field} is {values[other.arm]!r}, {first.arm} has {values[first.arm]!r}"
    if first.sample_unit != other.sample_unit:
        found["sample_unit"] = f"it counts {other.sample_unit}, {first.arm} counts {first.sample_unit}"
    return found


def fairness_table(records: Sequence[LaunchRecord]) -> list[dict[str, Any]]:
    """Return every value that differs between the arms of one launch: ``field``, ``values`` by arm, ``asked``. Pure."""
    return [
        {"field": field, "values": values, "asked": asked}
        for field, asked, values in _differences([record for record in records if record.ranks])
    ]


def _differences(records: Sequence[LaunchRecord]) -> Iterable[tuple[str, bool, dict[str, Any]]]:
    """Yield (field, whether it was asked for, value by arm) where the values differ."""
    flat = {record.arm: _flatten(record) for record in records}
    fields = dict.fromkeys(field for values in flat.values() for field in values)
    for field in fields:
        values = {arm: flat[arm].get(field) for arm in flat}
        if field.startswith("source."):  # an arm's plug-in may import more of what lies beside the workload
            values = {arm: value for arm, value in values.items() if value is not None}
        if any(value != next(iter(values.values())) for value in values.values()):
            yield field, _is_asked(field, records, values) or _follows_from_ranks(field, records, values), values


def _is_asked(field: str, records: Sequence[LaunchRecord], values: Mapping[str, Any]) -> bool:
    """Whether the plan asked for the difference, or the field defines an arm. A control must equal its baseline."""
    rule = arm_rule(field)
    if rule == "result":
        return True
    kind, _, variable = field.partition(".")
    disturbs = any(disturbances({variable: str(value)}, get_args(Library)) for value in values.values() if value is not None)
    is_librarys = kind == "environment" and variable.startswith(OWN_VARIABLES) and not disturbs
    if is_librarys or all(record.role in ("baseline", "control") for record in records):
        return is_librarys
    condition = condition_of(field)
    if condition is not None and condition.follows & own_work(records):
        return True
    return rule == "own" or (kind == "environment" and any(variable in record.environment for record in records))


def _follows_from_ranks(field: str, records: Sequence[LaunchRecord], values: Mapping[str, Any]) -> bool:
    """Whether the difference follows from unequal numbers of ranks: arms with as many ranks agree."""
    by_ranks: dict[int, list[Any]] = {}
    for record in records:
        by_ranks.setdefault(record.world_size, []).append(values[record.arm])
    return arm_rule(field) == "as ranks" and all(value == same[0] for same in by_ranks.values() for value in same)


def _flatten(record: LaunchRecord) -> dict[str, Any]:
    """Return an arm's values by field; where its ranks differ, the list by rank."""
    per_rank = [_flatten_rank(rank) for rank in record.ranks]
    found = {}
    for field in dict.fromkeys(field for values in per_rank for field in values):
        values = [own.get(field) for own in per_rank]
        found[field] = values[0] if all(value == values[0] for value in values) else values
    return found


def _flatten_rank(rank: RankReport) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in (one for one in CONDITIONS if one.arms):
        value = rank.fingerprint.get(one.field) if one.source == "host" else getattr(rank, one.field)
        parts = {f"{one.name}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {one.name: value}
        found |= parts
    return found
