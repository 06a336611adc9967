"""Runs that people started themselves: their folders, which arm each is a launch of, and what must
be equal in them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measurement.conditions.conditions import condition_of, conditions
from measurement.conditions.differences import (
    OWN_ENVIRONMENT,
    Difference,
    arm_differences,
    in_words,
    is_allowed,
    row_of,
)
from measurement.errors import PlanError, RecordError
from measurement.plans.plan import ARM_NAME, Plan
from measurement.records.record import LaunchRecord
from measurement.records.results import ResultsFolder, folder_name

ArmKey = tuple[str, str, str, str]
"""What makes runs the launches of one arm: backend, transport, launcher and options; or the name
that somebody gave them."""
NAMED = re.compile(rf"({ARM_NAME.pattern})=(.+)", re.DOTALL)
"""Such as ``old=runs/a-*``."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run that stood alone."""

    folder: ResultsFolder
    plan: Plan
    record: LaunchRecord
    arm: str | None = None
    """The name that was given to its arm; None: none was."""

    @property
    def name(self) -> str:
        """Its folder, as it was given."""
        return str(self.folder.root)

    @property
    def kind(self) -> ArmKey:
        """Which arm it is a launch of."""
        return self.recorded_kind if self.arm is None else (self.arm, "", "", "")

    @property
    def recorded_kind(self) -> ArmKey:
        """What it is a run of."""
        record = self.record
        return (
            record.backend,
            record.transport,
            record.launcher,
            json.dumps(record.options, sort_keys=True),
        )

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step."""
        return self.plan.local_batch_size * self.plan.micro_steps * self.plan.world_size


def is_separate(folder: ResultsFolder) -> bool:
    """Whether a folder is that of a run which people started themselves."""
    return folder.plan_path.is_file() and folder.read_plan().measurement.mode == "separate"


def read_runs(arguments: Sequence[Path | str]) -> list[Run]:
    """Read runs from their folders, from folders above them, and from patterns such as
    ``runs/ddp-*``; each once, as given.

    Each may have the name of its arm before it, ``old=runs/a-*`` or ``old=runs/a-1,runs/a-2``.

    Raises:
        RecordError: there is none, or one cannot be read.
        PlanError: some have names and others have none, or runs of one name are no launches of one
            arm.
    """
    places = [place for argument in arguments for place in _named_paths(str(argument))]
    nameless = [str(path) for name, path in places if name is None]
    if nameless and len(nameless) < len(places):
        raise PlanError(
            f"'{nameless[0]}' has no name, and others have; give each one, as in old=RUN old=RUN"
            " new=RUN"
        )
    folders: dict[Path, tuple[Path, str | None]] = {}
    for name, path in places:
        for folder in _run_folders(path):
            _, other = folders.setdefault(folder.resolve(), (folder, name))
            if other != name:
                raise PlanError(
                    f"'{folder}' is named '{other}' and '{name}'; give each run one name"
                )
    runs = [_read_run(ResultsFolder(folder), name) for folder, name in folders.values()]
    _require_one_kind(runs)
    return runs


def _named_paths(text: str) -> Iterator[tuple[str | None, Path]]:
    """The paths that an argument names, with the name of their arm."""
    match = NAMED.fullmatch(text)
    if match is None or Path(text).exists():
        yield None, Path(text)
        return
    name, paths = match.groups()
    for path in [paths] if Path(paths).exists() else paths.split(","):
        if not path:
            raise PlanError(
                f"'{text}' names no folder after a comma or '='; give old=RUN or old=RUN,RUN"
            )
        yield name, Path(path).expanduser()


def _require_one_kind(runs: Sequence[Run]) -> None:
    """Refuse runs of one given name that are of several arms."""
    firsts: dict[ArmKey, Run] = {}
    for run in runs:
        first = firsts.setdefault(run.kind, run)
        if first.recorded_kind != run.recorded_kind:
            raise PlanError(
                f"'{run.arm}' names runs of different arms: {_kind_words(first)};"
                f" {_kind_words(run)}; give them names of their own"
            )


def _kind_words(run: Run) -> str:
    backend, transport, launcher, options = run.recorded_kind
    return f"'{run.name}' is {backend} over {transport} by {launcher}, options {options}"


def _run_folders(path: Path) -> Iterator[Path]:
    matching = (
        [path]
        if path.exists()
        else sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    )
    if not matching:
        raise RecordError(
            f"'{path}' does not exist; give the folders that runs wrote (their -o), or one above"
            " them"
        )
    for folder in matching:
        if (folder / "plan.yaml").is_file():
            folders = [folder]
        else:
            folders = [
                plan.parent
                for plan in sorted(folder.rglob("plan.yaml"))
                if is_separate(ResultsFolder(plan.parent))
            ]
        if not folders and len(matching) == 1:
            raise RecordError(
                f"'{path}' holds no run with a plan.yaml; give the folders that python -m"
                " runners.ddp, runners.hvd, ... wrote with this version of Ringside, or one above"
                " them"
            )
        yield from folders


def _read_run(folder: ResultsFolder, arm: str | None = None) -> Run:
    plan = folder.read_plan()
    if plan.measurement.mode != "separate":
        raise RecordError(
            f"'{folder.root}' is a comparison that 'ringside compare' measured; give it alone,"
            " without standalone runs"
        )
    records = folder.records()
    if len(records) != 1:
        raise RecordError(
            f"'{folder.root}' holds {len(records)} records where a run has one; measure it again"
            " into another folder"
        )
    return Run(folder=folder, plan=plan, record=records[0], arm=arm)


def name_arms(runs: Sequence[Run]) -> dict[ArmKey, str]:
    """Name every kind of run as was given; else after its backend, and what distinguishes it from
    others of the same backend.
    """
    chosen = {run.kind: run.arm for run in runs if run.arm is not None}
    if chosen:
        return chosen
    kinds = {run.kind: run.record for run in runs}
    names: dict[ArmKey, str] = {}
    for kind, record in kinds.items():
        same_backend = [
            other
            for other in kinds.values()
            if folder_name(other.backend) == folder_name(record.backend)
        ]
        parts = [folder_name(record.backend)]
        parts += [
            getattr(record, part)
            for part in ("transport", "launcher")
            if len({getattr(other, part) for other in same_backend}) > 1
        ]
        for option in sorted({option for other in same_backend for option in other.options}):
            if (
                len({json.dumps(other.options.get(option)) for other in same_backend}) > 1
                and option in record.options
            ):
                parts.append(f"{option}.{record.options[option]}")
        name = re.sub(r"[^A-Za-z0-9._+-]+", "_", "-".join(parts))
        names[kind] = name if name not in names.values() else f"{name}-{len(names) + 1}"
    return names


def require_equal_conditions(
    runs: Sequence[Run], arms: Mapping[ArmKey, str], allowed: Sequence[str]
) -> list[str]:
    """Refuse runs that train something else, or on other conditions.

    Runs of one world size are compared with each other. ``allowed``: fields that may differ, with
    all fields below them.

    Returns:
        What differs and was allowed, a sentence for each field; and in which versions and sources
        arms differ that were named.

    Raises:
        PlanError: with the fields and what they are in which run.
    """
    by_size: dict[int, dict[str, list[Run]]] = {}
    for run in runs:
        size = 0 if run.plan.training else run.plan.world_size
        by_size.setdefault(size, {}).setdefault(arms[run.kind], []).append(run)
    rows = asked_differences({run.name: run for run in runs}, allowed=allowed)
    for by_arm in by_size.values():
        for same in by_arm.values():  # whose launches must agree in all that they report
            rows += rank_differences(
                {run.name: run for run in same}, is_one_arm=True, allowed=allowed
            )
    between = [{same[0].name: same[0] for same in by_arm.values()} for by_arm in by_size.values()]
    of_arms = [row for firsts in between for row in rank_differences(firsts, allowed=allowed)]
    of_sizes = rank_differences(
        {name: run for firsts in between for name, run in [*firsts.items()][:1]}, allowed=allowed
    )
    rows += [
        *of_arms,
        *(row for row in of_sizes if row.field not in {"placement", *_fields_of_size()}),
    ]
    by_row: dict[str, Difference] = {}
    for row in rows:
        by_row.setdefault(row.field, row)
    refuse([row.sentence for row in by_row.values() if not row.allowed])
    by_name = {run.name: arms[run.kind] for run in runs}
    chosen = [
        row
        for row in by_row.values()
        if is_allowed({row.field}, allowed, changes_work=row.changes_work)
    ]
    named = [
        (row, {by_name[name]: value for name, value in row.values.items()})
        for row in by_row.values()
        if row not in chosen and condition_of(row.field).follows and runs[0].arm is not None
    ]
    return [
        *(
            f"The runs that were named differ: {in_words(row.field, values)}"
            for row, values in named
        ),
        *(f"Compared although it differs (--allow): {row.sentence}" for row in chosen),
    ]


def asked_differences(runs: Mapping[str, Run], *, allowed: Sequence[str]) -> list[Difference]:
    """In what the plans of runs, by name, ask for something else."""
    return [
        row_of(field, values, allow=allowed)
        for condition in conditions()
        if condition.runs
        for field, values in by_field(
            condition.field,
            {name: getattr(run.plan, condition.field) for name, run in runs.items()},
        )
    ]


def _fields_of_size() -> set[str]:
    """What a single process that trains with the global batch of many ranks has of its own."""
    as_ranks = [condition for condition in conditions() if condition.arms == "as ranks"]
    return {condition.between_runs or condition.name for condition in as_ranks}


def by_field(field: str, values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What differs by field and name, one level down where the values have fields."""
    dumped = {
        name: value.model_dump() if hasattr(value, "model_dump") else value
        for name, value in values.items()
    }
    if all(isinstance(value, dict) for value in dumped.values()):
        for inner in dict.fromkeys(key for value in dumped.values() for key in value):
            yield from by_field(
                f"{field}.{inner}", {name: value.get(inner) for name, value in dumped.items()}
            )
    elif any(value != next(iter(dumped.values())) for value in dumped.values()):
        yield field, dict(dumped)


def rank_differences(
    runs: Mapping[str, Run], *, is_one_arm: bool = False, allowed: Sequence[str] = ()
) -> list[Difference]:
    """What the ranks of runs, by name, report differently.

    ``is_one_arm``: what defines an arm may not differ, either. Else names of arms stand for their
    versions and sources.
    """
    first = next(iter(runs.values()))
    own_fields = OWN_ENVIRONMENT if first.arm is not None and not is_one_arm else ()
    records = [
        _as_condition(run, name=name, role="baseline" if is_one_arm else "candidate")
        for name, run in runs.items()
    ]
    rows = arm_differences(records, varied_work=own_fields, allow=allowed, between_runs=True)
    # the number of threads in force is reported by itself
    unimportant = {"environment.OMP_NUM_THREADS"}
    if first.plan.training:
        unimportant |= {"seed", *_fields_of_size()}
    note = {"severity": "note", "allowed": True, "changes_work": False}
    rows = [row.model_copy(update=note) if row.field in unimportant else row for row in rows]
    batches = {name: run.global_batch for name, run in runs.items()}
    if first.plan.training and len({*batches.values()}) > 1:
        rows.append(row_of("global batch", batches, allow=allowed))
    return rows


def _as_condition(run: Run, *, name: str, role: str) -> LaunchRecord:
    """The record as it is compared: under a name, cores counted and hosts numbered."""
    ranks = [
        rank.model_copy(update={"affinity": [len(rank.affinity)], "host": f"host {rank.node_rank}"})
        for rank in run.record.ranks
    ]
    return run.record.model_copy(update={"arm": name, "role": role, "ranks": ranks})


def refuse(lines: Sequence[str]) -> None:
    """Raise a ``PlanError`` with these differences, if there are any."""
    if lines:
        raise PlanError(
            "these runs do not measure the same thing, or not under equal conditions:\n  "
            + "\n  ".join(lines)
            + "\nmeasure them under equal conditions, leave some out, name them where sources or"
            " versions are the question (old=RUN new=RUN), or say --allow FIELD to compare them"
            " anyway"
        )
