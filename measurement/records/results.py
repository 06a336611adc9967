"""Where records are, and how they are read and written: only ``ResultsFolder`` knows the paths.

Older files are upgraded in ``migrate`` and nowhere else. Unknown keys are ignored.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from measurement.errors import PlanError, RecordError, cut
from measurement.files import LockedError, lock_folder, read_text, write_whole
from measurement.plans.plan import ARM_NAME, Plan
from measurement.plans.plan_file import check_plan, parse_yaml
from measurement.records.record import (
    SCHEMA_VERSION,
    LaunchRecord,
    Manifest,
    ScriptReport,
    Traces,
)

if TYPE_CHECKING:
    # imported where tables are: it takes half a second of a core, and most ranks write none
    import pandas as pd

Model = TypeVar("Model", bound=BaseModel)
MAX_RECORD_BYTES = 1 << 30
MIN_ROOM_BYTES = 32 << 20
HOSTS_FILE, LOSSES_FILE, SCRIPT_FILE = "hosts.parquet", "losses.parquet", "script.json.gz"
TRACES_FILE = "traces.json"
SCRIPTS: TypeAdapter[list[ScriptReport]] = TypeAdapter(list[ScriptReport])
"""The reports of a script's ranks, in ``script.json.gz``."""


def default_folder(name: str) -> Path:
    """``results/<name>-<date>-<time>``: a new one at each start."""
    return Path("results") / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def folder_name(reference: str) -> str:
    """A folder's name for a workload or backend: its name, or the class of ``module:Class``."""
    return reference if ARM_NAME.fullmatch(reference) else reference.rpartition(":")[2]


class ResultsFolder:
    """``results/<comparison_id>/``: the folder of one comparison."""

    def __init__(self, root: Path) -> None:
        try:
            str(root.absolute()).encode()
        except UnicodeEncodeError as error:
            raise PlanError(
                f"results folder '{root.absolute()}' has a name that is not UTF-8; give another"
                " with -o"
            ) from error
        self.root = root
        self._lock: IO[str] | None = None

    @property
    def plan_path(self) -> Path:
        """The plan as it was run, defaults included."""
        return self.root / "plan.yaml"

    @property
    def manifest_path(self) -> Path:
        """What holds for the whole comparison: versions, hosts, sources (``Manifest``)."""
        return self.root / "manifest.json"

    def point(self, name: str) -> ResultsFolder:
        """The folder of one point of a study: a comparison like any other."""
        return ResultsFolder(self.root / "points" / name)

    def measured_points(self, plan: Plan) -> dict[str, ResultsFolder]:
        """The folders of the points of its plan that have a record, by name, in the plan's
        order.
        """
        places = {name: self.point(name) for name in plan.points}
        return {
            name: place
            for name, place in places.items()
            if place.plan_path.is_file() and place.record_paths()
        }

    def launch_folder(self, launch: int, arm: str) -> Path:
        """Where one launch of one arm is written."""
        return self.root / f"launch-{launch:03d}" / arm

    @property
    def traces_folder(self) -> Path:
        """The folder of traces, which exists if there are any."""
        return self.root / "traces"

    def traces(self) -> Traces | None:
        """The traces of the arms; None: there are none.

        Raises:
            RecordError: they are damaged.
        """
        path = self.traces_folder / TRACES_FILE
        return _read_model(path, Traces) if path.is_file() else None

    def events_folder(self, arm: str, run: str) -> Path:
        """Where TensorBoard's event files of one run of an arm are written."""
        return self.root / "tensorboard" / arm / run

    def lock(self) -> None:
        """Keep other processes from writing into the folder, for the life of this object.

        Makes the folder if needed.

        Raises:
            RecordError: another process writes into it; the message says which.
        """
        # if it failed after measuring, the measurements would be lost
        importlib.import_module("measurement.records.step_tables")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.root)
        except LockedError as error:
            raise RecordError(
                f"'{self.root}' is being written by {error}; wait until it is done, or give another"
                " folder with -o"
            ) from None
        except OSError as error:
            raise RecordError(
                f"'{self.root}' cannot be written: {error.strerror or error}; give another folder"
                " with -o"
            ) from error

    def require_room(self) -> None:
        """Refuse to measure where the results could not be written.

        Raises:
            RecordError: the disk is almost full.
        """
        free = shutil.disk_usage(self.root).free
        if free < MIN_ROOM_BYTES:
            raise RecordError(
                f"'{self.root}' is on a disk with {free >> 20} MiB left, and a launch may need"
                f" {MIN_ROOM_BYTES >> 20}; make room, and go on with the same command"
            )

    def write_plan(self, plan: Plan) -> None:
        """Write the plan; the folder belongs to it from then on."""
        write_result(self.plan_path, plan.to_yaml())

    def read_plan(self) -> Plan:
        """The plan this folder belongs to.

        Raises:
            RecordError: there is none.
        """
        if not self.plan_path.is_file():
            raise RecordError(
                f"'{self.root}' holds no plan.yaml; give a folder that 'ringside compare' wrote"
            )
        try:
            content = parse_yaml(read_text(self.plan_path), source=str(self.plan_path))
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(f"'{self.plan_path}' cannot be read: {error}") from error
        return check_plan(content, source=str(self.plan_path), extra="ignore")

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest."""
        write_result(self.manifest_path, manifest.model_dump_json(indent=1))

    def manifest(self) -> Manifest | None:
        """The manifest; None where the comparison was killed before it was written: the figures do
        not need it.
        """
        return self.read_manifest() if self.manifest_path.is_file() else None

    def read_manifest(self) -> Manifest:
        """The manifest, upgraded.

        Raises:
            RecordError: it is missing or damaged.
        """
        return _read_model(self.manifest_path, Manifest)

    def write_launch(self, record: LaunchRecord) -> None:
        """Write one launch of one arm: steps first, so that a record always has its own steps."""
        from measurement.records import step_tables

        folder = self.launch_folder(record.launch, record.arm)
        _remove_earlier(folder / "record.json", record)
        write_result(folder / "steps.parquet", step_tables.parquet_of_steps(record))
        if any(block.hosts for block in record.blocks):
            write_result(
                folder / HOSTS_FILE, step_tables.host_use_of(record).to_parquet(index=False)
            )
        if record.scripts:
            write_result(
                folder / LOSSES_FILE, step_tables.losses_of(record).to_parquet(index=False)
            )
            write_result(
                folder / SCRIPT_FILE, gzip.compress(SCRIPTS.dump_json(record.scripts), mtime=0)
            )
        self.write_record(record)

    def write_record(self, record: LaunchRecord) -> None:
        """Replace a record; its steps stay as they are."""
        path = self.launch_folder(record.launch, record.arm) / "record.json"
        write_result(
            path,
            record.model_dump_json(
                indent=1, exclude={"scripts": True, "blocks": {"__all__": {"ranks", "hosts"}}}
            ),
        )

    def losses(self, record: LaunchRecord) -> pd.DataFrame:
        """The losses of a script's steps (columns: ``LOSS_COLUMNS``); no rows where none was seen.

        Raises:
            RecordError: they cannot be read.
        """
        from measurement.records import step_tables

        path = self.launch_folder(record.launch, record.arm) / LOSSES_FILE
        if not path.is_file():
            return step_tables.empty(step_tables.LOSS_COLUMNS)
        with _readable(path):
            return step_tables.read_losses(path)

    def records(self) -> list[LaunchRecord]:
        """All records, by launch and arm; a damaged one is an error, and is never skipped.

        Raises:
            RecordError: a record cannot be read.
        """
        return [read_record(path) for path in self.record_paths()]

    def record_paths(self) -> list[Path]:
        """The files of all records, by launch and arm."""
        return sorted(self.root.glob("launch-*/*/record.json"))

    def steps(self, record: LaunchRecord) -> pd.DataFrame:
        """The raw steps of a launch (columns: ``STEP_COLUMNS``); no rows where nothing was
        timed.
        """
        from measurement.records import step_tables

        return step_tables.joined(self.parts_of_steps(record), step_tables.STEP_COLUMNS)

    def parts_of_steps(self, record: LaunchRecord) -> Iterator[pd.DataFrame]:
        """Yield the raw steps in parts of at most ``step_tables.ROWS_AT_ONCE`` rows, since a
        thousand ranks write tens of millions.

        Raises:
            RecordError: they cannot be read.
        """
        from measurement.records import step_tables

        path = self.launch_folder(record.launch, record.arm) / "steps.parquet"
        if not path.is_file():
            if record.blocks:
                raise RecordError(
                    f"'{path}' is missing, and the record beside it has {len(record.blocks)}"
                    " blocks; remove its folder to measure that launch again"
                )
            return
        with _readable(path):
            yield from step_tables.read_steps(path, record)

    def host_use(self, records: Sequence[LaunchRecord]) -> pd.DataFrame:
        """What the hosts did during the blocks of these records: columns ``launch``, ``arm`` and
        ``HOST_COLUMNS``.

        Raises:
            RecordError: a table cannot be read. One that is missing has no rows: the run was not
                driven, or is older.
        """
        from measurement.records import step_tables

        tables: list[pd.DataFrame] = []
        for record in records:
            path = self.launch_folder(record.launch, record.arm) / HOSTS_FILE
            if path.is_file():
                with _readable(path):
                    tables.append(step_tables.read_host_use(path, record))
        return step_tables.joined(tables, step_tables.HOST_USE_TYPES)


def _remove_earlier(path: Path, record: LaunchRecord) -> None:
    """Remove the record of an earlier attempt at the same launch, whose steps are about to be
    replaced.
    """
    with contextlib.suppress(RecordError):
        if path.is_file() and read_record(path).started_at == record.started_at:
            return
    with contextlib.suppress(OSError):  # writing the steps fails then, too, and is reported
        path.unlink(missing_ok=True)


def write_result(path: Path, content: bytes | str) -> None:
    """Write a file of a results folder, whole or not at all.

    Raises:
        RecordError: it cannot be written.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise RecordError(
            f"'{path}' cannot be written: {error.strerror or error}; earlier files are complete:"
            " make room, or make the folder writable, and go on with the same command"
        ) from error


REMEDY = "remove it to report without it, or its folder to measure that launch again"
DAMAGE = (
    OSError,
    EOFError,
    zlib.error,
    ValueError,
    AttributeError,
    KeyError,
    TypeError,
    ArithmeticError,
    NotImplementedError,
    RecursionError,
)
"""What readers raise for files that are damaged, or belong to another record."""


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what is raised while a file is read into a ``RecordError`` that says what to do."""
    try:
        yield
    except ValidationError as error:
        why = f"{error.error_count()} values do not fit"
        raise RecordError(f"'{path}' cannot be read: {why}; {REMEDY}") from error
    except DAMAGE as error:
        raise RecordError(f"'{path}' cannot be read: {cut(str(error))}; {REMEDY}") from error


def read_record(path: Path) -> LaunchRecord:
    """One record, upgraded.

    Raises:
        RecordError: it is missing, damaged or of a later version.
    """
    reports_path, scripts = path.with_name(SCRIPT_FILE), list[ScriptReport]()
    if reports_path.is_file():
        with _readable(reports_path), gzip.open(reports_path) as file:
            scripts = SCRIPTS.validate_json(file.read(MAX_RECORD_BYTES), extra="ignore")
    return _read_model(path, LaunchRecord, scripts=scripts)


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""By n: upgrades a file of version n to n + 1."""


def migrate(content: dict[str, Any], *, source: str) -> dict[str, Any]:
    """Upgrade a file's content to ``SCHEMA_VERSION``.

    Raises:
        RecordError: no version, or one this Ringside does not know.
    """
    version = content.get("schema_version")
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise RecordError(
            f"'{source}' has schema_version {version!r}; this Ringside reads 1 to {SCHEMA_VERSION}:"
            " use the one that wrote it"
        )
    for older in range(version, SCHEMA_VERSION):
        content = MIGRATIONS[older](content)
    return {**content, "schema_version": SCHEMA_VERSION}


def _read_model(path: Path, model: type[Model], **beside: Any) -> Model:
    """The content of a file, upgraded; ``beside``: fields that are in other files."""
    if not path.exists():
        raise RecordError(f"'{path}' does not exist; give a folder that 'ringside compare' wrote")
    with _readable(path):
        content = json.loads(read_text(path, max_bytes=MAX_RECORD_BYTES))
        upgraded = migrate(content, source=str(path))
        return model.model_validate({**upgraded, **beside}, extra="ignore")
