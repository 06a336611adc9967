"""The folders of runs that people started themselves, and which arm each run is a launch of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from measurement.errors import RecordError
from measurement.plans.plan import Plan
from measurement.records.record import LaunchRecord
from measurement.records.results import ResultsFolder, folder_name

ArmKey = tuple[str, str, str, str]
"""What makes runs the launches of one arm: backend, transport, launcher and options."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run that stood alone."""

    folder: ResultsFolder
    plan: Plan
    record: LaunchRecord

    @property
    def name(self) -> str:
        """Its folder, as it was given."""
        return str(self.folder.root)

    @property
    def kind(self) -> ArmKey:
        """Which arm it is a launch of."""
        record = self.record
        return record.backend, record.transport, record.launcher, json.dumps(record.options, sort_keys=True)

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step."""
        return self.plan.local_batch_size * self.plan.micro_steps * self.plan.world_size


def is_separate(folder: ResultsFolder) -> bool:
    """Whether a folder is that of a run which people started themselves."""
    return folder.plan_path.is_file() and folder.read_plan().measurement.mode == "separate"


def read_runs(given: Sequence[Path]) -> list[Run]:
    """Read runs from their folders, from folders above them, and from patterns such as ``runs/ddp-*``; each once, as given.

    Raises:
        RecordError: there is none, or one cannot be read.
    """
    folders: dict[Path, Path] = {}
    for path in given:
        for folder in _run_folders(path):
            folders.setdefault(folder.resolve(), folder)
    return [_read_run(ResultsFolder(folder)) for folder in folders.values()]


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


def _read_run(folder: ResultsFolder) -> Run:
    plan = folder.read_plan()
    if plan.measurement.mode != "separate":
        raise RecordError(
            f"'{folder.root}' is a comparison that 'ringside compare' measured; give it alone, without the runs that stood alone"
        )
    records = folder.records()
    if len(records) != 1:
        raise RecordError(f"'{folder.root}' holds {len(records)} records where a run has one; measure it again into another folder")
    return Run(folder=folder, plan=plan, record=records[0])


def name_arms(runs: Sequence[Run]) -> dict[ArmKey, str]:
    """Name every kind of run after its backend, and after what else tells it from others of the same backend."""
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
