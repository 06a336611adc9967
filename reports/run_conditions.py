"""What must be equal in runs that people started themselves before a ratio of them means anything (``conditions.fairness``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from measurement.conditions.conditions import CONDITIONS, MAY_DIFFER_BETWEEN_RUNS, condition_of
from measurement.conditions.fairness import fairness_table
from measurement.errors import PlanError
from measurement.records.record import LaunchRecord
from reports.run_folders import ArmKey, Run

QUESTION = tuple(condition.field for condition in CONDITIONS if condition.runs)
"""Fields of a plan that define what is asked; the ranks report the rest."""
SHOWN_AS = {condition.name: condition.between_runs for condition in CONDITIONS if condition.between_runs}
"""Names of fields that are compared in another form: hosts by their number and cores by how many they are."""
BATCH = tuple(SHOWN_AS.get(one.name, one.name) for one in CONDITIONS if one.arms == "as ranks")
"""What a single process that trains with the global batch of many ranks has of its own."""
FOLLOWS_FROM_SIZE = ("placement", *BATCH)
"""What may differ between runs of unlike world sizes; the batch is looked at by itself."""


def require_equal_conditions(runs: Sequence[Run], arms: Mapping[ArmKey, str], allowed: Sequence[str]) -> list[str]:
    """Refuse runs that train something else, or on other conditions.

    Runs of one world size are compared with each other. ``allowed``: fields that may differ, with all that stands below them.

    Returns:
        What differs and was allowed, a sentence for each field; and in which versions and sources arms differ that were named.

    Raises:
        PlanError: with the fields and what they are in which run.
    """
    by_size: dict[int, dict[str, list[Run]]] = {}
    for run in runs:
        size = 0 if run.plan.training else run.plan.world_size
        by_size.setdefault(size, {}).setdefault(arms[run.kind], []).append(run)
    asked = (by_field(field, {run.name: getattr(run.plan, field) for run in runs}) for field in QUESTION)
    differing, between = {field: values for found in asked for field, values in found}, dict[str, dict[str, Any]]()
    for by_arm in by_size.values():
        for same in by_arm.values():  # whose launches must agree in all that they report
            differing |= of_ranks(same, is_one_arm=True)
        between |= of_ranks([same[0] for same in by_arm.values()], is_one_arm=False)
    sizes = [next(iter(by_arm.values()))[0] for by_arm in by_size.values()]
    of_sizes = of_ranks(sizes, is_one_arm=False)
    between |= {field: values for field, values in of_sizes.items() if field not in FOLLOWS_FROM_SIZE}
    named = between.keys() - differing.keys() if runs[0].arm is not None else set()
    brought = _brought_by_versions(between, runs)
    shown = {field: values for field, values in between.items() if field in named and (is_told_by_names(field) or field in brought)}
    differing = {field: values for field, values in (between | differing).items() if field not in shown}
    refuse([told(field, values) for field, values in differing.items() if not is_allowed(field, allowed)])
    by_name = {run.name: arms[run.kind] for run in runs}
    named_by = {field: {by_name[name]: value for name, value in values.items()} for field, values in shown.items()}
    return [
        *(f"The runs that were named differ: {told(field, values)}" for field, values in named_by.items()),
        *(f"Compared although {told(field, values)} (--allow)" for field, values in differing.items()),
    ]


def is_told_by_names(field: str) -> bool:
    """Whether runs may differ in a field where people named their arms: versions and sources."""
    condition = condition_of(field)
    return condition is not None and bool(condition.follows) and not condition.is_work


def _brought_by_versions(between: Mapping[str, Mapping[str, Any]], runs: Sequence[Run]) -> set[str]:
    """Settings of the optimizer that one release of PyTorch has and the other has not."""
    classes = {str(rank.optimizer.get("class")) for run in runs for rank in run.record.ranks}
    if "host.torch" not in between or len(classes) > 1:
        return set()
    return {field for field, values in between.items() if field.startswith("optimizer.") and None in values.values()}


def by_field(field: str, values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What differs by field and name, one level down where the values have fields."""
    dumped = {name: value.model_dump() if hasattr(value, "model_dump") else value for name, value in values.items()}
    if all(isinstance(value, dict) for value in dumped.values()):
        for inner in dict.fromkeys(key for value in dumped.values() for key in value):
            yield from by_field(f"{field}.{inner}", {name: value.get(inner) for name, value in dumped.items()})
    elif any(value != next(iter(dumped.values())) for value in dumped.values()):
        yield field, dict(dumped)


def of_ranks(runs: Sequence[Run], *, is_one_arm: bool) -> dict[str, dict[str, Any]]:
    """What the ranks of runs report differently, by field and run; ``is_one_arm``: what defines an arm may not differ, either."""
    trains = runs[0].plan.training is not None
    records = [_as_condition(run, role="baseline" if is_one_arm else "candidate") for run in runs]
    unimportant = (*MAY_DIFFER_BETWEEN_RUNS, *(("seed", *BATCH) if trains else ()))
    found = {
        SHOWN_AS.get(entry["field"], entry["field"]): entry["values"] for entry in fairness_table(records) if not entry["asked"]
    }
    if trains and len({run.global_batch for run in runs}) > 1:
        found["global batch"] = {run.name: run.global_batch for run in runs}
    return {field: values for field, values in found.items() if field not in unimportant}


def _as_condition(run: Run, *, role: str) -> LaunchRecord:
    """The record as ``fairness_table`` is to see it: under the run's name, cores counted and hosts numbered."""
    ranks = [
        rank.model_copy(update={"affinity": [len(rank.affinity)], "host": f"host {rank.node_rank}"}) for rank in run.record.ranks
    ]
    nothing = {"workload": "", "workload_options": {}}  # which are compared by themselves, and ask for nothing else
    return run.record.model_copy(update={"arm": run.name, "role": role, "ranks": ranks, **nothing})


def is_allowed(field: str, allowed: Sequence[str]) -> bool:
    """Whether a field, or one that it stands below, may differ."""
    return any(field == one or field.startswith(f"{one}.") for one in allowed)


def told(field: str, values: Mapping[str, Any]) -> str:
    """Such as ``local_batch_size is 32 in ddp-1, ddp-2; 64 in hvd-1``."""
    by_value: dict[str, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(repr(value) if not isinstance(value, str) else value, []).append(name)
    return f"{field} is " + "; ".join(f"{value} in {', '.join(names)}" for value, names in by_value.items())


def refuse(lines: Sequence[str]) -> None:
    """Raise a ``PlanError`` with these differences, if there are any."""
    if lines:
        raise PlanError(
            "these runs are not of one question, or not on equal conditions:\n  "
            + "\n  ".join(lines)
            + "\nmeasure them alike, leave some out, name them where sources or versions are the question (old=RUN new=RUN), or "
            "say --allow FIELD to compare them all the same"
        )
