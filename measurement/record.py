"""What is written about a comparison: one record and one table of steps per launch and arm, one manifest for the whole.

Raw samples are stored, derived numbers never. Every file carries ``schema_version``. Reading and writing: ``measurement.results``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from measurement.training import EpochRecord

SCHEMA_VERSION = 2
"""2: steps, blocks and launches know the cases of micro-benchmarks."""

STEP_COLUMNS = {
    "rank": "int32",
    "turn": "int32",
    "round": "int32",
    "block": "int32",
    "kind": "string",
    "case": "string",
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
times in seconds on the rank's own clock, the phases sum to ``step_s``.

``case`` is empty in training. In a micro-benchmark it names the cell, a step is the block's ``repetitions`` of its operation,
all of the time stands under ``backward_s``, where gradients are exchanged in training, and ``samples`` are the bytes of the
messages, counted once for all ranks: on rank 0."""

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


class Case(Written):
    """One cell of a micro-benchmark: an operation at one size."""

    name: str
    """Such as ``all_reduce/64KiB``."""
    operation: str
    message_bytes: int
    """Really moved, where the size asked for cannot be shared out evenly among the ranks."""
    messages: int = 1
    """One after another in each repetition: 2 in a ping-pong."""
    busbw_factor: float = 1.0
    """busbw = algbw × this: what of the message each link must carry."""


class BlockRecord(Written):
    """One block that ran: which, when, and how long it took besides its timed steps."""

    turn: int
    round: int
    block: int
    kind: Literal["sync", "local"]
    case: str = ""
    """The micro-benchmark's cell; empty in training."""
    steps: int
    repetitions: int = 1
    """Of a micro-benchmark's operation in each step."""
    started_s: float
    """Seconds since the driver began this launch's blocks."""
    wall_s: float
    """From the command to the last rank's reply, freeze and thaw excluded."""
    untimed_s: float
    """Rebuild and warm-up steps, slowest rank."""
    link_bytes: dict[str, tuple[int, int]] = {}
    """In a lab: bytes sent and received over each host's link while the block ran, untimed steps included."""


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
    cases: list[Case] = []
    """Of a micro-benchmark, in its order; empty in training."""
    not_offered: dict[str, str] = {}
    """Why the arm cannot be measured in a case, by the case's name."""
    blocks: list[BlockRecord] = []
    epochs: list[EpochRecord] = []
    """Of a plan with ``training``: each is also a block."""


class Manifest(Written):
    """What holds for the whole comparison."""

    schema_version: int = SCHEMA_VERSION
    comparison_id: str
    plan_digest: str
    created_at: str
    ringside_version: str
    driver: dict[str, Any] = {}
    """Fingerprint of the host the driver ran on, git commit included."""
    hosts: dict[str, dict[str, Any]] = {}
    """By name, of a plan that names hosts: fingerprint, MPI, interfaces, and ``clock_offset_s`` ± ``clock_error_s``, how far
    its clock was ahead of the driver's."""
    warnings: list[str] = []
    """Differences between those hosts that did not keep them from being used."""
    fairness: list[dict[str, Any]] = []
    """Each value that differs between arms: ``field``, ``values`` by arm, ``asked`` (true: the plan asked for it, or it
    is what defines the backend)."""
    failed_points: dict[str, str] = {}
    """Of a study: why nothing, or no more, could be measured at a point, by its name."""
    seconds: dict[str, float] = {}
    """Where the time went, summed over sessions: ``total``, ``starting``, ``training`` (timed and untimed steps), ``other``."""
