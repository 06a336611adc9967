"""The fairness manifest: what the ranks say of themselves, held side by side.

What defines an arm (its backend, and what the plan sets for it) may differ and is shown. Everything else must be alike:
a difference nobody asked for makes two arms incomparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from measurement.record import LaunchRecord, RankReport

MUST_AGREE = ("device", "threads", "affinity", "seed", "local_batch_size", "micro_steps", "world_size", "host")
FINGERPRINT_MUST_AGREE = ("platform", "cpu", "python", "torch", "torchvision", "numpy", "gpus", "driver")
OWN_VARIABLES = ("HOROVOD_", "OMPI_", "TORCHELASTIC_", "TORCH_", "NCCL_", "UCX_", "FI_", "KMP_INIT")
"""Variables that launchers and backends set for themselves; everything else must be the same in all arms."""


def unasked_differences(first: LaunchRecord, other: LaunchRecord) -> list[str]:
    """What differs between two arms though the plan did not ask for it; one line each, rank by rank. Pure."""
    found = []
    for field, asked, values in _differences([first, other]):
        if not asked:
            found.append(f"{field} is {values[other.arm]!r}, {first.arm} has {values[first.arm]!r}")
    return found


def fairness_table(records: Sequence[LaunchRecord]) -> list[dict[str, Any]]:
    """Every value that differs between the arms of one launch: ``field``, ``values`` by arm, ``asked``. Pure."""
    return [
        {"field": field, "values": values, "asked": asked}
        for field, asked, values in _differences([record for record in records if record.ranks])
    ]


def _differences(records: Sequence[LaunchRecord]) -> Iterable[tuple[str, bool, dict[str, Any]]]:
    """(field, asked for, value by arm) wherever the values are not all the same."""
    flat = {record.arm: _flatten(record) for record in records}
    fields = dict.fromkeys(field for values in flat.values() for field in values)
    for field in fields:
        values = {arm: flat[arm].get(field) for arm in flat}
        if any(value != next(iter(values.values())) for value in values.values()):
            yield field, _is_asked(field, records), values


def _is_asked(field: str, records: Sequence[LaunchRecord]) -> bool:
    """The plan asked, or the field belongs to what an arm is. A control is nothing but its baseline again."""
    if all(record.role in ("baseline", "control") for record in records):
        return field.startswith("environment.") and field.removeprefix("environment.").startswith(OWN_VARIABLES)
    if field.startswith(("backend.", "optimizer.class")):
        return True
    variable = field.removeprefix("environment.")
    if variable != field:
        return variable.startswith(OWN_VARIABLES) or any(variable in record.environment for record in records)
    return False


def _flatten(record: LaunchRecord) -> dict[str, Any]:
    """An arm's values by field; where ranks differ among themselves, the list by rank."""
    per_rank = [_flatten_rank(rank) for rank in record.ranks]
    fields = dict.fromkeys(field for values in per_rank for field in values)
    return {field: _one_or_all([values.get(field) for values in per_rank]) for field in fields}


def _flatten_rank(rank: RankReport) -> dict[str, Any]:
    return {
        **{name: getattr(rank, name) for name in MUST_AGREE},
        **{f"optimizer.{name}": value for name, value in rank.optimizer.items()},
        **{f"model.{name}": value for name, value in rank.model.items()},
        **{f"host.{name}": rank.fingerprint.get(name) for name in FINGERPRINT_MUST_AGREE},
        **{f"backend.{name}": value for name, value in rank.backend.items()},
        **{f"environment.{name}": value for name, value in rank.environment.items()},
    }


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else values
