"""What is written about a comparison: one record and one table of steps per launch and arm, one manifest for the whole.

Raw samples are stored, derived numbers never. Every file carries ``schema_version``; older ones are brought up to date in
``migrate`` and nowhere else. ``ResultsFolder`` is the one owner of the paths.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from measurement.errors import RecordError
from measurement.files import write_whole
from measurement.plan import Plan, check_plan

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1

STEP_COLUMNS = {
    "rank": "int32",
    "turn": "int32",
    "round": "int32",
    "block": "int32",
    "kind": "string",
    "step": "int32",
    "samples": "int64",
    "data_wait_s": "float64",
    "forward_s": "float64",
    "backward_s": "float64",
    "optimizer_s": "float64",
    "step_s": "float64",
}
"""steps.parquet: one row per rank and timed step. ``turn`` counts the blocks of all arms in the order they ran in this
launch, ``block`` those of this arm, ``round`` the rounds; ``kind`` is ``sync`` or ``local``; ``samples`` are this rank's;
times in seconds on the rank's own clock, the phases sum to ``step_s``."""

PHASES = ("data_wait", "forward", "backward", "optimizer")


class Written(BaseModel):
    """Base of what is stored."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class RankReport(Written):
    """What a rank reports of itself, read back from inside it: the raw material of the fairness manifest."""

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    local_world_size: int
    launcher: str
    """The family of environment variables the rank found itself by."""
    host: str
    pid: int
    device: str
    threads: int
    """torch.get_num_threads()."""
    affinity: list[int]
    """Cores the rank may run on; empty where the platform does not tell."""
    seed: int
    local_batch_size: int
    micro_steps: int
    optimizer: dict[str, Any] = {}
    """Class and hyperparameters of the optimizer as wrapped, learning rate included."""
    backend: dict[str, Any] = {}
    """``Backend.describe()``: versions, controller, transport, bucket or fusion sizes really in force."""
    model: dict[str, Any] = {}
    """Class, number of parameters and bytes of gradient of the model."""
    environment: dict[str, str] = {}
    """The allow-listed environment variables."""
    fingerprint: dict[str, Any] = {}
    """``measurement.fingerprint.fingerprint()`` of the rank's host."""


class ParityResult(Written):
    """What the parity gate found for one launch of an arm."""

    passed: bool
    failures: list[str] = []
    """One line each: the tensor, the size of the error, the tolerance."""
    gradient_error: float | None = None
    """Largest relative L2 error of a synchronised gradient against the float64 mean; None: not checked (see ``notes``)."""
    parameter_spread: float | None = None
    """Largest relative L2 distance between two ranks' parameters after ``parity_steps`` optimizer steps."""
    tolerance: float | None = None
    notes: list[str] = []
    samples_digest: str | None = None
    """Digest over all ranks' batches; equal in all arms that consumed the same samples."""


class BlockRecord(Written):
    """One block that ran: which, when, and how long it took besides its timed steps."""

    turn: int
    round: int
    block: int
    kind: Literal["sync", "local"]
    steps: int
    started_s: float
    """Seconds since the driver began this launch's blocks."""
    wall_s: float
    """From the command to the last rank's reply, freeze and thaw excluded."""
    untimed_s: float
    """Rebuild and warm-up steps, slowest rank."""


class Failure(Written):
    """Why an arm has no timing in a launch."""

    message: str
    ranks: list[int] = []
    """The ranks it is laid to; empty where that is not known."""
    hosts: list[str] = []
    log_tail: dict[str, str] = {}
    """The last lines of each such rank's log, or the launcher's, by log name."""


class LaunchRecord(Written):
    """One launch of one arm."""

    schema_version: int = SCHEMA_VERSION
    comparison_id: str
    plan_digest: str
    launch: int
    arm: str
    role: Literal["baseline", "control", "candidate"]
    backend: str
    transport: str
    launcher: str
    options: dict[str, Any] = {}
    environment: dict[str, str] = {}
    workload: str
    sample_unit: str = "samples"
    world_size: int
    hosts: list[str] = []
    status: Literal["ok", "failed", "wrong", "timeout"]
    complete: bool = True
    """False: the launch was interrupted; what was measured until then counts."""
    error: Failure | None = None
    commands: list[dict[str, Any]] = []
    """Each host's argv as started."""
    exit_codes: list[int | None] = []
    started_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    start_s: float | None = None
    """From the launcher's start until the slowest rank had connected, built its model and passed the gate."""
    measuring_s: float | None = None
    """Wall time of this launch's blocks, all arms together."""
    ranks: list[RankReport] = []
    parity: ParityResult | None = None
    peak_memory_bytes: list[int] = []
    """Per rank: peak resident memory on CPU, peak allocated device memory on GPU."""
    blocks: list[BlockRecord] = []


class Manifest(Written):
    """What holds for the whole comparison."""

    schema_version: int = SCHEMA_VERSION
    comparison_id: str
    plan_digest: str
    created_at: str
    ringside_version: str
    driver: dict[str, Any] = {}
    """Fingerprint of the host the driver ran on, git commit included."""
    block_steps: int | None = None
    """Timed steps per block, the same for all arms and launches; set by the first launch."""
    fairness: list[dict[str, Any]] = []
    """Each value that differs between arms: ``field``, ``values`` by arm, ``asked`` (true: the plan asked for it, or it
    is what defines the backend)."""
    seconds: dict[str, float] = {}
    """Where the time went, summed over sessions: ``total``, ``starting``, ``training`` (timed and untimed steps), ``other``."""


class ResultsFolder:
    """``results/<comparison_id>/``: where everything of one comparison lies."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def plan_path(self) -> Path:
        """The plan as it was run, defaults included."""
        return self.root / "plan.yaml"

    @property
    def manifest_path(self) -> Path:
        """What every rank reported of itself, and where the time went."""
        return self.root / "manifest.json"

    def launch_folder(self, launch: int, arm: str) -> Path:
        """Where one launch of one arm is written."""
        return self.root / f"launch-{launch:03d}" / arm

    def rank_log(self, launch: int, arm: str, rank: int) -> Path:
        """What one rank printed."""
        return self.launch_folder(launch, arm) / f"rank-{rank}.log"

    def write_plan(self, plan: Plan) -> None:
        """Write the plan; the folder belongs to it from then on."""
        write_whole(self.plan_path, plan.to_yaml())

    def read_plan(self) -> Plan:
        """The plan this folder belongs to.

        Raises:
            RecordError: there is none.
        """
        if not self.plan_path.is_file():
            raise RecordError(f"'{self.root}' holds no plan.yaml; give a folder that 'ringside compare' wrote")
        return check_plan(yaml.safe_load(self.plan_path.read_text()), source=str(self.plan_path))

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest."""
        write_whole(self.manifest_path, manifest.model_dump_json(indent=1))

    def read_manifest(self) -> Manifest:
        """The manifest, brought up to date.

        Raises:
            RecordError: it is missing or damaged.
        """
        return Manifest.model_validate(_read_json(self.manifest_path))

    def write_launch(self, record: LaunchRecord, steps: pd.DataFrame) -> None:
        """Write one launch of one arm: steps first, so that a record never lacks them."""
        folder = self.launch_folder(record.launch, record.arm)
        buffer = BytesIO()
        steps.astype(STEP_COLUMNS)[list(STEP_COLUMNS)].to_parquet(buffer, index=False)
        write_whole(folder / "steps.parquet", buffer.getvalue())
        write_whole(folder / "record.json", record.model_dump_json(indent=1))

    def records(self) -> list[LaunchRecord]:
        """All records, by launch and arm; a damaged one is an error, never a hole.

        Raises:
            RecordError: a record cannot be read.
        """
        paths = sorted(self.root.glob("launch-*/*/record.json"))
        return [read_record(path) for path in paths]

    def steps(self, record: LaunchRecord) -> pd.DataFrame:
        """The raw steps of a launch (columns: ``STEP_COLUMNS``); no rows where nothing was timed."""
        path = self.launch_folder(record.launch, record.arm) / "steps.parquet"
        if not path.is_file():
            return empty_steps()
        import pandas as pd

        try:
            return pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise RecordError(f"'{path}' cannot be read: {error}; remove its folder to measure that launch again") from error


def empty_steps() -> pd.DataFrame:
    """A table of steps without rows."""
    import pandas as pd

    return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in STEP_COLUMNS.items()})


def steps_table(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Rows of ``STEP_COLUMNS`` as a table."""
    import pandas as pd

    table = pd.DataFrame(list(rows))
    return table.astype(STEP_COLUMNS) if len(table) else empty_steps()


def read_record(path: Path) -> LaunchRecord:
    """One record, brought up to date.

    Raises:
        RecordError: it is missing, damaged or of a later version.
    """
    try:
        return LaunchRecord.model_validate(_read_json(path))
    except ValidationError as error:
        raise RecordError(f"'{path}' is not a launch record: {error.error_count()} values do not fit") from error


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From version n to n + 1, keyed by n."""


def migrate(content: dict[str, Any], *, source: str) -> dict[str, Any]:
    """Bring stored content up to ``SCHEMA_VERSION``.

    Raises:
        RecordError: no version, or one this Ringside does not know.
    """
    version = content.get("schema_version")
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise RecordError(
            f"'{source}' has schema_version {version!r}; this Ringside reads 1 to {SCHEMA_VERSION}: use the one that wrote it"
        )
    while version < SCHEMA_VERSION:
        content = {**MIGRATIONS[version](content), "schema_version": version + 1}
        version += 1
    return content


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise RecordError(f"'{path}' does not exist; give a folder that 'ringside compare' wrote") from error
    except (OSError, ValueError) as error:
        raise RecordError(f"'{path}' cannot be read: {error}; remove its folder to measure that launch again") from error
    if not isinstance(content, dict):
        raise RecordError(f"'{path}' holds {type(content).__name__}, not an object")
    return migrate(content, source=str(path))
