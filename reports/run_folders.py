"""The folders of runs that people started themselves, and which arm each run is a launch of: by what it is, or by a name given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from measurement.errors import PlanError, RecordError
from measurement.plans.plan import ARM_NAME, Plan
from measurement.records.record import LaunchRecord
from measurement.records.results import ResultsFolder, folder_name

ArmKey = tuple[str, str, str, str]
"""What makes runs the launches of one arm: backend, transport, launcher and options; or the name that somebody gave them."""
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
        return record.backend, record.transport, record.launcher, json.dumps(record.options, sort_keys=True)

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step."""
        return self.plan.local_batch_size * self.plan.micro_steps * self.plan.world_size


def is_separate(folder: ResultsFolder) -> bool:
    """Whether a folder is that of a run which people started themselves."""
    return folder.plan_path.is_file() and folder.read_plan().measurement.mode == "separate"


def read_runs(given: Sequence[Path | str]) -> list[Run]:
    """Read runs from their folders, from folders above them, and from patterns such as ``runs/ddp-*``; each once, as given.

    Each may have the name of its arm before it, ``old=runs/a-*`` or ``old=runs/a-1,runs/a-2``.

    Raises:
        RecordError: there is none, or one cannot be read.
        PlanError: some have names and others have none, or runs of one name are no launches of one arm.
    """
    places = [place for one in given for place in _named(str(one))]
    nameless = [str(path) for name, path in places if name is None]
    if nameless and len(nameless) < len(places):
        raise PlanError(f"'{nameless[0]}' has no name, and others have; give each one, as in old=RUN old=RUN new=RUN")
    folders: dict[Path, tuple[Path, str | None]] = {}
    for name, path in places:
        for folder in _run_folders(path):
            _, other = folders.setdefault(folder.resolve(), (folder, name))
            if other != name:
                raise PlanError(f"'{folder}' is named '{other}' and '{name}'; give each run one name")
    runs = [_read_run(ResultsFolder(folder), name) for folder, name in folders.values()]
    _require_one_kind(runs)
    return runs


def _named(text: str) -> Iterator[tuple[str | None, Path]]:
    """The paths that an argument names, with the name of their arm."""
    found = NAMED.fullmatch(text)
    if found is None or Path(text).exists():
        yield None, Path(text)
        return
    name, paths = found.groups()
    for path in [paths] if Path(paths).exists() else paths.split(","):
        if not path:
            raise PlanError(f"'{text}' names no folder after a comma or '='; give old=RUN or old=RUN,RUN")
        yield name, Path(path).expanduser()


def _require_one_kind(runs: Sequence[Run]) -> None:
    """Refuse runs of one given name that are of several arms."""
    firsts: dict[ArmKey, Run] = {}
    for run in runs:
        first = firsts.setdefault(run.kind, run)
        if first.recorded_kind != run.recorded_kind:
            raise PlanError(
                f"'{run.arm}' names runs of unlike arms: {_kind_words(first)}; {_kind_words(run)}; give them names of their own"
            )


def _kind_words(run: Run) -> str:
    backend, transport, launcher, options = run.recorded_kind
    return f"'{run.name}' is {backend} over {transport} by {launcher}, options {options}"


def _run_folders(path: Path) -> Iterator[Path]:
    matching = [path] if path.exists() else sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    if not matching:
        raise RecordError(f"'{path}' does not exist; give the folders that runs wrote (their -o), or one above them")
    for folder in matching:
        if (folder / "plan.yaml").is_file():
            found = [folder]
        else:
            found = [plan.parent for plan in sorted(folder.rglob("plan.yaml")) if is_separate(ResultsFolder(plan.parent))]
        if not found and len(matching) == 1:
            raise RecordError(
                f"'{path}' holds no run with a plan.yaml; give the folders that python -m runners.ddp, runners.hvd, ... wrote with "
                "this version of Ringside, or one above them"
            )
        yield from found


def _read_run(folder: ResultsFolder, arm: str | None = None) -> Run:
    plan = folder.read_plan()
    if plan.measurement.mode != "separate":
        raise RecordError(
            f"'{folder.root}' is a comparison that 'ringside compare' measured; give it alone, without the runs that stood alone"
        )
    records = folder.records()
    if len(records) != 1:
        raise RecordError(f"'{folder.root}' holds {len(records)} records where a run has one; measure it again into another folder")
    return Run(folder=folder, plan=plan, record=records[0], arm=arm)


def name_arms(runs: Sequence[Run]) -> dict[ArmKey, str]:
    """Name every kind of run as was given; else after its backend, and after what else tells it from others of the same backend."""
    given = {run.kind: run.arm for run in runs if run.arm is not None}
    if given:
        return given
    kinds = {run.kind: run.record for run in runs}
    names: dict[ArmKey, str] = {}
    for kind, record in kinds.items():
        alike = [other for other in kinds.values() if folder_name(other.backend) == folder_name(record.backend)]
        parts = [folder_name(record.backend)]
        parts += [getattr(record, part) for part in ("transport", "launcher") if len({getattr(one, part) for one in alike}) > 1]
        for option in sorted({option for one in alike for option in one.options}):
            if len({json.dumps(one.options.get(option)) for one in alike}) > 1 and option in record.options:
                parts.append(f"{option}.{record.options[option]}")
        name = re.sub(r"[^A-Za-z0-9._+-]+", "_", "-".join(parts))
        names[kind] = name if name not in names.values() else f"{name}-{len(names) + 1}"
    return names
