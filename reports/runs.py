"""Runs that people started themselves, each by its own command: ``ringside report RUN RUN ...``.

They are read from their folders, refused where they are not under equal conditions, and become a
comparison. One run is one launch. Runs of the same backend, transport, launcher and options are one
arm's launches; runs of several world sizes are its points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from measurement.conditions import condition_of, conditions
from measurement.conditions.differences import (
    OWN_ENVIRONMENT,
    Difference,
    arm_differences,
    by_severity,
    in_words,
    is_allowed,
    row_of,
)
from measurement.conditions.same_environment import plan_digest
from measurement.errors import PlanError, RecordError
from measurement.plans.plan import ARM_NAME, Plan, Point
from measurement.plans.sections import Arm
from measurement.records.record import LaunchRecord, RankReport
from measurement.records.results import ResultsFolder, folder_name
from reports.compose_comparison import compare, compare_points
from reports.conclusions.steps import Steps, read_steps
from reports.schema import Comparison

NAMED = re.compile(rf"({ARM_NAME.pattern})=(.+)", re.DOTALL)
"""Such as ``old=runs/a-*``."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run that stood alone."""

    name: str
    """Its folder, as it was given."""
    folder: ResultsFolder
    plan: Plan
    record: LaunchRecord
    arm: str = ""
    """The arm that it is a launch of."""
    is_named: bool = False
    """Whether somebody gave the arm its name: then versions and sources may be the question."""

    @property
    def settings(self) -> dict[str, str]:
        """What it is a run of, beside the backend, as its arm's name would say it."""
        record = self.record
        options = {name: f"{name}.{value}" for name, value in sorted(record.options.items())}
        return {"transport": record.transport, "launcher": record.launcher} | options

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
    Runs without names are launches of one arm where backend, transport, launcher and options are
    the same.

    Raises:
        RecordError: there is none, or one cannot be read.
        PlanError: some have names and others have none.
    """
    folders: dict[Path, tuple[Path, str]] = {}
    for argument in map(str, arguments):
        named = None if Path(argument).exists() else NAMED.fullmatch(argument)
        name, paths = named.groups() if named else ("", argument)
        separate = paths.split(",") if named and not Path(paths).exists() else [paths]
        for path in filter(None, separate):
            for folder in _run_folders(Path(path).expanduser()):
                folders.setdefault(folder.resolve(), (folder, name))
    runs = [_read_run(ResultsFolder(folder), name) for folder, name in folders.values()]
    nameless = [run for run in runs if not run.is_named]
    if nameless and len(nameless) < len(runs):
        raise PlanError(
            f"'{nameless[0].name}' has no name, and others have; give each one, as in old=RUN"
            " old=RUN new=RUN"
        )
    return _with_names(runs) if nameless else runs


def _run_folders(path: Path) -> list[Path]:
    pattern = str(path.relative_to(path.anchor))
    folders = list[Path]()
    for folder in [path] if path.exists() else sorted(Path(path.anchor).glob(pattern)):
        if (folder / "plan.yaml").is_file():
            folders.append(folder)
        else:
            inside = [plan.parent for plan in sorted(folder.rglob("plan.yaml"))]
            folders += [run for run in inside if is_separate(ResultsFolder(run))]
    if not folders:
        raise RecordError(
            f"'{path}' {'holds no run' if path.exists() else 'does not exist'}; give the folders"
            " that python -m runners.ddp, runners.hvd, ... wrote (their -o), or one above them"
        )
    return folders


def _read_run(folder: ResultsFolder, arm: str) -> Run:
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
    return Run(
        name=str(folder.root),
        folder=folder,
        plan=plan,
        record=records[0],
        arm=arm,
        is_named=bool(arm),
    )


def _with_names(runs: Sequence[Run]) -> list[Run]:
    """Runs with the names of their arms: the backend, and what distinguishes it from others of the
    same backend.
    """
    kinds: dict[tuple[str, ...], str] = {}
    named = []
    for run in runs:
        backend = folder_name(run.record.backend)
        others = [other.settings for other in runs if folder_name(other.record.backend) == backend]
        distinct = [
            text
            for setting, text in run.settings.items()
            if any(other.get(setting) != text for other in others)
        ]
        name = re.sub(r"[^A-Za-z0-9._+-]+", "_", "-".join([backend, *distinct]))
        kind = (run.record.backend, *run.settings.values())
        unique = name if name not in kinds.values() else f"{name}-{len(kinds) + 1}"
        named.append(replace(run, arm=kinds.setdefault(kind, unique)))
    return named


def conclude_runs(
    runs: Sequence[Run], *, name: str, baseline: str | None = None, allowed: Sequence[str] = ()
) -> Comparison:
    """Compare runs.

    ``baseline``: an arm's name, else that of the first run. ``allowed``: fields that may differ,
    with all fields below them.

    Raises:
        PlanError: the runs do not measure the same thing, or there is no such baseline.
    """
    arms = list(dict.fromkeys(run.arm for run in runs))
    baseline = baseline or arms[0]
    if baseline not in arms:
        raise PlanError(
            f"--baseline '{baseline}' is not an arm of these runs; use {' or '.join(arms)}"
        )
    notes = require_equal_conditions(runs, allowed)
    size_of = attrgetter("plan.world_size")
    by_size = {size: list(same) for size, same in groupby(sorted(runs, key=size_of), key=size_of)}
    compare_runs = partial(_comparison, allowed=allowed, notes=notes)
    if len(by_size) == 1 or runs[0].plan.training is not None:
        return compare_runs(runs, name=name, baseline=baseline)
    scaling = _scaling(by_size, allowed)
    comparisons = {}
    for size, same in by_size.items():
        present = {run.arm for run in same}
        is_alone = baseline not in present and len(present) == 1
        comparisons[f"n{size}"] = compare_runs(
            same, name=f"{name}.n{size}", baseline=same[0].arm if is_alone else baseline
        )
    update = {
        "name": name,
        "baseline": baseline,
        "arms": {run.arm: _as_asked(run.record) for run in runs},
        "points": {f"n{size}": Point(world_size=size) for size in by_size},
        "scaling": scaling,
    }
    smallest = by_size[min(by_size)][0].plan
    return compare_points(smallest.model_copy(update=update), comparisons, comparison_id=name)


def _comparison(
    runs: Sequence[Run],
    *,
    name: str,
    baseline: str,
    allowed: Sequence[str],
    notes: Sequence[str],
) -> Comparison:
    """Compare runs of one world size that may be compared."""
    by_arm: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.record.started_at):
        by_arm.setdefault(run.arm, []).append(run)
    if baseline not in by_arm:
        raise PlanError(
            f"there is no run of the baseline '{baseline}' with {runs[0].plan.world_size} ranks;"
            " measure one, or choose another --baseline"
        )
    first, least = by_arm[baseline][0], min(run.plan.seed for run in runs)
    length = {"launches": max(map(len, by_arm.values()))}
    update = {
        "name": name,
        "seed": least,
        "baseline": baseline,
        "arms": {arm: _as_asked(same[0].record) for arm, same in by_arm.items()},
        "measurement": first.plan.measurement.model_copy(update=length),
    }
    # that a driver would have run: everything is as in the baseline's first run
    plan = first.plan.model_copy(update=update)
    launches = _launches(by_arm, least=least if plan.training else None)
    records, tables = [], []
    for (arm, launch), run in launches.items():
        place = {
            "comparison_id": name,
            "plan_digest": plan_digest(plan),
            "arm": arm,
            "role": plan.role(arm),
            "launch": launch,
        }
        records.append(run.record.model_copy(update=place))
        tables.append(read_steps(run.folder, [run.record]).as_of(arm=arm, launch=launch))
    firsts = [replace(same[0], name=arm) for arm, same in by_arm.items()]
    rows = by_severity(
        [*asked_differences(firsts, allowed=allowed), *rank_differences(firsts, allowed=allowed)]
    )
    comparison = compare(plan, records, Steps.joined(tables), differences=rows)
    named = {arm: [run.name for run in same] for arm, same in by_arm.items()}
    return comparison.model_copy(update={"runs": named, "warnings": [*comparison.warnings, *notes]})


def _as_asked(record: LaunchRecord) -> Arm:
    """What a plan would say of a run."""
    return Arm(**record.model_dump(include={"backend", "transport", "launcher", "options"}))


def _launches(
    by_arm: Mapping[str, Sequence[Run]], *, least: int | None
) -> dict[tuple[str, int], Run]:
    """Every run by arm and number of launch: of an arm in the order of their start, of trainings by
    seed, which arms share, from the ``least``.
    """
    launches: dict[tuple[str, int], Run] = {}
    for arm, same in by_arm.items():
        for number, run in enumerate(same):
            launch = number if least is None else run.plan.seed - least
            other = launches.setdefault((arm, launch), run)
            if other is not run:
                raise PlanError(
                    f"'{other.name}' and '{run.name}' trained {arm} with the same seed"
                    f" {run.plan.seed}; give each a seed of its own, the same ones in every arm, or"
                    " leave one out"
                )
    return launches


def _scaling(by_size: Mapping[int, Sequence[Run]], allowed: Sequence[str]) -> str:
    """What stays the same from size to size."""
    batches = {size: same[0].plan.local_batch_size for size, same in by_size.items()}
    if len({*batches.values()}) == 1:
        return "weak"
    wholes = {same[0].global_batch for same in by_size.values()}
    if len(wholes) > 1 and not is_allowed({"local_batch_size"}, allowed):
        batch_of_size = {f"runs of {size} ranks": batch for size, batch in batches.items()}
        refuse(
            [
                f"{in_words('local_batch_size', batch_of_size)} (neither the batch of each rank nor"
                " that of all together is the same)"
            ]
        )
    return "strong"


def require_equal_conditions(runs: Sequence[Run], allowed: Sequence[str]) -> list[str]:
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
        by_size.setdefault(size, {}).setdefault(run.arm, []).append(run)
    firsts_by_size = [[same[0] for same in by_arm.values()] for by_arm in by_size.values()]
    rows = asked_differences(runs, allowed=allowed)
    for by_arm in by_size.values():
        for same in by_arm.values():  # whose launches must agree in all that they report
            rows += rank_differences(same, is_one_arm=True, allowed=allowed)
    for firsts in firsts_by_size:
        rows += rank_differences(firsts, allowed=allowed)
    follows_from_size = {"placement", *_fields_of_size()}
    of_sizes = rank_differences([firsts[0] for firsts in firsts_by_size], allowed=allowed)
    rows += [row for row in of_sizes if row.field not in follows_from_size]
    by_field: dict[str, Difference] = {}
    for row in rows:
        by_field.setdefault(row.field, row)
    refuse([row.sentence for row in by_field.values() if not row.allowed])
    arms, notes = {run.name: run.arm for run in runs}, []
    for row in by_field.values():
        if is_allowed({row.field}, allowed, changes_work=row.changes_work):
            notes.append(f"Compared although it differs (--allow): {row.sentence}")
        elif condition_of(row.field).follows and runs[0].is_named:
            values = {arms[name]: value for name, value in row.values.items()}
            notes.append(f"The runs that were named differ: {in_words(row.field, values)}")
    return notes


def asked_differences(runs: Sequence[Run], *, allowed: Sequence[str]) -> list[Difference]:
    """In what the plans of runs ask for something else."""
    return [
        row_of(field, values, allow=allowed)
        for condition in conditions()
        if condition.runs
        for field, values in differing_fields(
            condition.field, {run.name: getattr(run.plan, condition.field) for run in runs}
        )
    ]


def _fields_of_size() -> set[str]:
    """What a single process that trains with the global batch of many ranks has of its own."""
    as_ranks = [condition for condition in conditions() if condition.arms == "as ranks"]
    return {condition.between_runs or condition.name for condition in as_ranks}


def differing_fields(field: str, values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What differs by field and name, one level down where the values have fields."""
    dumped = {
        name: value.model_dump() if hasattr(value, "model_dump") else value
        for name, value in values.items()
    }
    if all(isinstance(value, dict) for value in dumped.values()):
        for inner in dict.fromkeys(key for value in dumped.values() for key in value):
            yield from differing_fields(
                f"{field}.{inner}", {name: value.get(inner) for name, value in dumped.items()}
            )
    elif any(value != next(iter(dumped.values())) for value in dumped.values()):
        yield field, dict(dumped)


def rank_differences(
    runs: Sequence[Run], *, is_one_arm: bool = False, allowed: Sequence[str] = ()
) -> list[Difference]:
    """What the ranks of runs report differently.

    ``is_one_arm``: what defines an arm may not differ, either. Else names of arms stand for their
    versions and sources.
    """
    own_fields = OWN_ENVIRONMENT if runs[0].is_named and not is_one_arm else ()
    role = "baseline" if is_one_arm else "candidate"
    records = [
        run.record.model_copy(update={"arm": run.name, "role": role, "ranks": _compared_ranks(run)})
        for run in runs
    ]
    rows = arm_differences(records, varied_work=own_fields, allow=allowed, between_runs=True)
    # the number of threads in force is reported by itself
    unimportant = {"environment.OMP_NUM_THREADS"}
    if runs[0].plan.training:
        unimportant |= {"seed", *_fields_of_size()}
    note = {"severity": "note", "allowed": True, "changes_work": False}
    rows = [row.model_copy(update=note) if row.field in unimportant else row for row in rows]
    batches = {run.name: run.global_batch for run in runs}
    if runs[0].plan.training and len({*batches.values()}) > 1:
        rows.append(row_of("global batch", batches, allow=allowed))
    return rows


def _compared_ranks(run: Run) -> list[RankReport]:
    """The ranks as they are compared: cores counted and hosts numbered."""
    return [
        rank.model_copy(update={"affinity": [len(rank.affinity)], "host": f"host {rank.node_rank}"})
        for rank in run.record.ranks
    ]


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
