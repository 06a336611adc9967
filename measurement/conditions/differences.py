"""In what arms, scripts, runs, sessions and hosts differ: rows made from the table of
``conditions``.

Arms of a plan may differ in what defines them: the backend, and what the plan sets for one arm.
Everything else must be equal. A difference that was not asked for makes two arms incomparable. What
follows from an arm's own workload, commit or Python counts as asked for; where it makes the arm do
other work, its verdict is withheld.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, get_args

from measurement.conditions import (
    OWN_WORK,
    Condition,
    Severity,
    condition_of,
    conditions,
    faults_clause,
)
from measurement.environment import Library, disturbances
from measurement.records import Written
from measurement.records.record import LaunchRecord, RankReport

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
ALL = "all"
"""In ``allow``: every difference in work."""
BY_RANK = "by_rank"
BATCH = "local_batch_size"
BROADCAST = "backend.broadcast_buffers"
"""With buffers, it changes what a rank evaluates with; without any, nothing."""
MAX_SHOWN = 40
"""Characters of a value that a sentence or a table shows."""
DEFINING = ("world_size", "backend.library", "backend.transport")
"""What the plan says of every arm."""
OWN_ENVIRONMENT = frozenset({"python", "commit"})
"""Fields of a launch's record by which users tell the arms of their own runs apart."""


class Difference(Written):
    """One value in which arms, runs, sessions or hosts differ, or one observed difference of
    scripts' first steps.
    """

    field: str
    """Such as ``threads`` or ``optimizer.0.0.lr``; observed in first steps, such as
    ``gradients.scale``."""
    values: dict[str, Any]
    """By arm, or by run, session or host; null where it has none. Where ranks of an arm differ:
    ``{"by_rank": [...]}``."""
    severity: Severity = "training"
    changes_work: bool = False
    """Whether a step, or an epoch, is other work because of it."""
    allowed: bool = False
    """Whether it was asked for, is in ``allow``, or comes with an arm's library or launcher."""
    is_default: bool = False
    """Whether it comes with a library or launcher, and was not asked for."""
    is_asked: bool = False
    """Whether the plan asks for it: an arm's library, transport, ranks, options and variables."""
    sentence: str
    """What it means, without a full stop."""

    @property
    def is_note(self) -> bool:
        """Whether readers can ignore it: it comes with a library, was asked for, or follows from
        another.
        """
        return self.severity == "note"

    @property
    def withholds(self) -> bool:
        """Whether it withholds the verdict."""
        return self.changes_work and not self.allowed


def differing(
    by_name: Mapping[str, Mapping[str, Any]], *, shared: bool = False
) -> dict[str, dict[str, Any]]:
    """Every field that is not equal for all: its value by name, None where it is missing.

    ``shared``: only fields that all have. A missing source is no difference: a plug-in may import
    more files.
    """
    fields = dict.fromkeys(field for fields_of in by_name.values() for field in fields_of)
    differences = {}
    for field in fields:
        values = {
            name: fields_of.get(field)
            for name, fields_of in by_name.items()
            if field in fields_of or not field.startswith("source.")
        }
        present = list(values.values())
        if any(value != present[0] for value in present) and not (
            shared and any(field not in fields_of for fields_of in by_name.values())
        ):
            differences[field] = values
    return differences


def row_of(field: str, values: Mapping[str, Any], *, allow: Collection[str] = ()) -> Difference:
    """A difference that was not asked for, by the table.

    ``allow``: fields that may differ, or ``all``.
    """
    condition = condition_of(field)
    changes_work = condition.matters == "work"
    return Difference(
        field=field,
        values=dict(values),
        severity="speed" if condition.matters == "note" else condition.matters,
        changes_work=changes_work,
        allowed=is_allowed({field}, allow, changes_work=changes_work),
        sentence=in_words(condition.label or field, values) + faults_clause(field, values),
    )


def arm_differences(
    records: Sequence[LaunchRecord],
    *,
    varied_work: Collection[str] | None = None,
    allow: Collection[str] = (),
    between_runs: bool = False,
) -> list[Difference]:
    """In what the ranks of arms differ, as they report it. Pure.

    Args:
        records: one of each arm; those without ranks do not count.
        varied_work: fields of their records in which their own work differs; None: ``own_work``.
        allow: fields that may differ, with all below them, or ``all``.
        between_runs: whether to use the names of fields between runs.
    """
    with_ranks = [record for record in records if record.ranks]
    varied_work = own_work(with_ranks) if varied_work is None else varied_work
    if any(record.role == "candidate" for record in with_ranks) and any(
        record.local_batch_size for record in with_ranks
    ):
        # the plan gives arms their own batches; records of one arm at two times have no candidate
        allow = [*allow, BATCH]
    rows = []
    by_field = differing(
        {record.arm: _flatten(record, between_runs=between_runs) for record in with_ranks}
    )
    for field, values in by_field.items():
        condition, row = condition_of(field), row_of(field, values, allow=allow)
        follows = _follows_from_ranks(condition, with_ranks, values) or _is_of_one_release(
            field, values, by_field
        )
        if follows or (
            not row.changes_work and _is_asked(condition, field, values, with_ranks, varied_work)
        ):
            is_set = any(_is_set(field, record) for record in with_ranks)
            overrides = {
                "allowed": True,
                "changes_work": False,
                "is_default": condition.of_library and not is_set,
                "is_asked": is_set or (condition.arms == "own" and not condition.of_library),
                "severity": condition.matters if condition.of_library else "note",
            }
            row = row.model_copy(update=overrides)
        if field == BROADCAST and not any(
            rank.model.get("buffer_bytes") for record in with_ranks for rank in record.ranks
        ):
            row = row.model_copy(update={"severity": "speed"})
        rows.append(row)
    return rows


def noted_work(records: Iterable[LaunchRecord], *, allow: Collection[str] = ()) -> list[Difference]:
    """Differences in arms' own work that the gate observed in any launch: other samples, tensors or
    states. Pure.
    """
    noted: dict[str, dict[str, str]] = {}
    for record in records:
        for field, phrase in record.unlike_work.items():
            noted.setdefault(field, {}).setdefault(record.arm, phrase)
    return [
        Difference(
            field=field,
            values=phrases,
            severity="work",
            changes_work=True,
            allowed=is_allowed({field}, allow, changes_work=True),
            sentence="; ".join(f"{arm}: {phrase}" for arm, phrase in phrases.items()),
        )
        for field, phrases in noted.items()
    ]


def by_severity(differences: Iterable[Difference]) -> list[Difference]:
    """What changes training first, then what was asked for, what affects speed, and notes; of each
    a library's defaults last.
    """
    before_speed = SEVERITIES.index("speed") - 0.5

    def order(row: Difference) -> tuple[float, bool]:
        severity = SEVERITIES.index(row.severity)
        return min(severity, before_speed) if row.is_asked else severity, row.is_default

    return sorted(differences, key=order)


def own_work(records: Sequence[LaunchRecord]) -> set[str]:
    """Fields of records, such as ``commit``, in which the own work of these arms differs. Pure."""
    return {
        name
        for name in OWN_WORK
        if any(getattr(record, name) != getattr(records[0], name) for record in records)
    }


def unlike_work(differences: Sequence[Difference], *, baseline: str) -> dict[str, list[Difference]]:
    """By arm, the differences in work to the baseline that withhold its verdict."""
    by_arm: dict[str, list[Difference]] = {}
    for difference in differences:
        for arm, value in difference.values.items():
            if (
                difference.withholds
                and arm != baseline
                and value != difference.values.get(baseline)
            ):
                by_arm.setdefault(arm, []).append(difference)
    return by_arm


def is_allowed(
    fields: Collection[str], allow: Collection[str], *, changes_work: bool = False
) -> bool:
    """Whether ``allow`` has one of these fields, or a beginning of its name."""
    named = any(field == name or field.startswith(f"{name}.") for field in fields for name in allow)
    return named or (changes_work and ALL in allow)


def in_words(
    label: str, values: Mapping[str, Any], *, none: str = "not set", at: str = "in"
) -> str:
    """Such as ``threads of a rank: 1 in new, 2 in old``."""
    by_value: dict[str, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(none if value is None else shown(value), []).append(name)
    return f"{label}: " + ", ".join(
        f"{value} {at} {' and '.join(names)}" for value, names in by_value.items()
    )


def joined(values: Sequence[Any]) -> Any:
    """One value where all ranks agree, else those of all ranks."""
    return values[0] if all(value == values[0] for value in values) else {BY_RANK: list(values)}


def is_by_rank(value: Any) -> bool:
    """Whether ranks of an arm differ in it."""
    return isinstance(value, dict) and set(value) == {BY_RANK}


def shown(value: Any) -> str:
    """A value for a sentence or a table."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:.6g}"
    if is_by_rank(value):
        return cut(f"{', '.join(shown(part) for part in value[BY_RANK])} by rank")
    if isinstance(value, list | tuple):
        return cut(", ".join(shown(part) for part in value))
    return cut(str(value))


def cut(text: str) -> str:
    """A text, cut to ``MAX_SHOWN`` characters."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _is_asked(
    condition: Condition,
    field: str,
    values: Mapping[str, Any],
    records: Sequence[LaunchRecord],
    varied_work: Collection[str],
) -> bool:
    """Whether the plan or a library asks for it, or it defines an arm.

    A control must equal its baseline.

    A variable that disturbs never counts as a library's.
    """
    name = field.removeprefix("environment.")
    if condition.arms == "result" or condition.follows & set(varied_work):
        return True
    if condition.of_library and condition.arms != "own":
        return not any(
            disturbances({name: str(value)}, get_args(Library))
            for value in values.values()
            if value is not None
        )
    if all(record.role in ("baseline", "control") for record in records):
        return False
    return condition.arms == "own" or any(_is_set(field, record) for record in records)


def _is_set(field: str, record: LaunchRecord) -> bool:
    """Whether the plan sets it for this arm: what defines it, a variable, or an option of the
    library, in any unit.
    """
    kind, _, name = field.partition(".")
    if kind == "environment":
        return name in record.environment
    if kind == "backend" and _stem(name) in map(_stem, record.options):
        return True
    return field in DEFINING


def _stem(name: str) -> str:
    """A setting's name without its unit."""
    return name.removesuffix("_source").removesuffix("_bytes").removesuffix("_mb")


def _follows_from_ranks(
    condition: Condition, records: Sequence[LaunchRecord], values: Mapping[str, Any]
) -> bool:
    """Whether the difference follows from unequal numbers of ranks: arms with equal numbers
    agree.
    """
    return condition.arms == "as ranks" and all(
        values[record.arm] == values[other.arm]
        for record, other in itertools.combinations(records, 2)
        if record.world_size == other.world_size
    )


def _is_of_one_release(
    field: str, values: Mapping[str, Any], differing_fields: Collection[str]
) -> bool:
    """Whether it is an optimizer setting that only one of two PyTorch releases has."""
    return (
        field.startswith("optimizer.")
        and None in values.values()
        and "host.torch" in differing_fields
        and "optimizer.class" not in differing_fields
    )


def _flatten(record: LaunchRecord, *, between_runs: bool) -> dict[str, Any]:
    """Return an arm's values by field."""
    per_rank = [_of_rank(rank, between_runs=between_runs) for rank in record.ranks]
    fields = dict.fromkeys(field for values in per_rank for field in values)
    by_field = {field: joined([values.get(field) for values in per_rank]) for field in fields}
    return by_field | {"sample_unit": record.sample_unit}


def _of_rank(rank: RankReport, *, between_runs: bool) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for condition in (condition for condition in conditions() if condition.arms):
        if condition.source == "host":
            value = rank.fingerprint.get(condition.field)
        elif condition.source == "rank" and "." not in condition.field:
            value = getattr(rank, condition.field)
        else:
            continue
        name = (condition.between_runs if between_runs else None) or condition.name
        if isinstance(value, dict):
            values |= {f"{name}.{part}": of_part for part, of_part in value.items()}
        else:
            values[name] = value
    return values
