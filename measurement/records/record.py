"""What is stored of a comparison: records of launches, what scripts reported, traces, one manifest.

Raw samples are stored, derived numbers never. Every file carries ``schema_version``. Reading and
writing: ``records.results``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from measurement.plans.settings import ArmRole, EpochRecord
from measurement.records import Written
from measurement.records.block import BlockRecord

SCHEMA_VERSION = 1
"""Version of records and manifests. An incompatible change gets the next number, and an entry in
``MIGRATIONS``."""


class RankReport(Written):
    """What a rank reports of itself, as read inside it.

    ``conditions.differences`` compares arms by it.
    """

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    local_world_size: int
    launcher: str
    """The launcher whose environment variables gave the rank its place."""
    host: str
    pid: int
    device: str
    gpu: str | None = None
    """Address of its GPU on the PCI bus; None on a CPU, and where it is not known."""
    threads: int
    """torch.get_num_threads()."""
    affinity: list[int]
    """Cores the rank may run on."""
    seed: int
    local_batch_size: int
    micro_steps: int
    optimizer: dict[str, Any] = {}
    """Class and hyperparameters of the optimizer as wrapped, learning rate included."""
    backend: dict[str, Any] = {}
    """``Backend.describe()``: versions, controller, transport, bucket or fusion sizes in force."""
    model: dict[str, Any] = {}
    """Class, number of parameters and bytes of gradient of the model."""
    kept_bytes: dict[str, int] = {}
    """Bytes of ``parameters``, ``buffers`` and ``optimizer_state`` that this rank keeps: a share
    where the backend shards.

    A result and not a condition: before the first step there is no state.
    """
    environment: dict[str, str] = {}
    """The allow-listed environment variables."""
    fingerprint: dict[str, Any] = {}
    """``ringside_agent.machine.fingerprint()`` on the rank's host."""
    sources: dict[str, str] = {}
    """Digests of the source files of a user's workload; see ``measurement.registry.sources_of``."""
    owns_step: bool = False
    """Whether the library steps by an optimizer of its own (``Prepared.owns_step``), so that no
    floor can be compared with it."""


GATE_STEPS = 3
"""Optimizer steps of the parity gate, after which all ranks' parameters must agree."""


class ParityResult(Written):
    """What the parity gate found for one launch of an arm."""

    passed: bool
    failures: list[str] = []
    """One line each: the tensor, the size of the error, the tolerance."""
    gradient_error: float | None = None
    """Largest relative L2 error of a synchronised gradient against the float64 mean; None: not
    checked (see ``notes``)."""
    parameter_spread: float | None = None
    """Largest relative L2 distance between two ranks' parameters after ``GATE_STEPS`` optimizer
    steps."""
    tolerance: float | None = None
    notes: list[str] = []
    samples_digest: str | None = None
    """Digest over all ranks' batches; equal in all arms that consumed the same samples."""
    compared_with: str | None = None
    """The arm of as many ranks with whose parameters this one's were compared after the steps;
    None: there is none."""
    state_distance: float | None = None
    """Largest distance of a parameter, buffer or optimizer state from that arm's after the steps,
    relative to their change. None: not compared."""


class Case(Written):
    """One case of a micro-benchmark: an operation at one size, or a loader with one number of
    workers.
    """

    name: str
    """Such as ``all_reduce/64KiB``."""
    operation: str
    message_bytes: int = 0
    """Bytes that are moved, where the requested size cannot be shared evenly among the ranks."""
    samples: int = 0
    """Samples in all ranks' batches together, where a loader is measured and no message is sent."""
    messages: int = 1
    """One after another in each repetition: 2 in a ping-pong. Of a loader, batches."""
    busbw_factor: float = 1.0
    """busbw = algbw × this: the share of the message that each link must carry."""

    @property
    def size(self) -> int:
        """Bytes or samples of each message or batch."""
        return self.samples or self.message_bytes


class FlopCount(Written):
    """Floating-point operations of a forward and a backward pass of rank 0
    (``measurement.flops``).
    """

    samples: int = 0
    """In the batch that was computed, in the workload's unit."""
    by_operation: dict[str, int] = {}
    dtype: str = ""
    """The dtype of most of the model's parameters, such as ``float32``."""
    without_formula: list[str] = []
    """Operations that may compute much and were not counted."""
    error: str | None = None
    """Why nothing could be counted."""


class Failure(Written):
    """Why an arm has no timing in a launch."""

    message: str
    excerpt: list[str] = []
    """The lines of the user's code where a rank raised an exception."""
    ranks: list[int] = []
    """The ranks that caused it; empty where that is not known."""
    hosts: list[str] = []
    log_tail: dict[str, str] = {}
    """The last lines of each such rank's log, or the launcher's, by log name."""


Sketch = list[float]
"""float64 [up to 16]: a count sketch, whose norm is about that of the tensor. Linear, so sketches
can be subtracted."""


class ComparedStep(Written):
    """One of a script's first steps on one rank."""

    loss: float | None = None
    """Mean over the step's backward passes; None: no scalar was seen."""
    backward_passes: int = 1
    learning_rates: list[float] = []
    """By parameter group of all optimizers, when the step was taken."""
    samples: int | None = None
    """How many this rank used; None: they could not be counted."""
    batch: str | None = None
    """Digest of the tensors that the loader yielded for it."""
    gradients: dict[str, Sketch] = {}
    """After the exchange, when the optimizer steps; by parameter, in the first step only."""
    parameters: dict[str, Sketch] = {}
    """After the step."""


class LineUse(Written):
    """One line of the functions that lead to ``step()``, in a compared step."""

    place: str
    """``train.py:48``."""
    text: str
    """The line itself."""
    seconds: float
    """Its time in a step, with all that it calls: median of some steps."""
    exchange_s: float = 0.0
    """Seconds of these that it waits for exchange."""
    phases: list[str] = []
    """Phases of the step that it contains: ``data_wait``, ``forward``, ``backward``,
    ``optimizer``."""
    collectives: dict[str, float] = {}
    """How many it calls in a step, besides those of gradients: ``all_reduce of 4 B``."""


class ScriptReport(Written):
    """One rank of a script."""

    rank: int
    configuration: dict[str, Any] = {}
    """Settings by dotted name, such as ``optimizer.0.lr``; plain JSON values. Names:
    docs/scripts.md."""
    defaults: dict[str, Any] = {}
    """The library's defaults of those settings that the script has changed."""
    started: dict[str, Sketch] = {}
    """Parameters and buffers before the first step, by name without wrappers' prefixes; buffers
    under ``buffer:NAME``."""
    sizes: dict[str, int] = {}
    """Number of elements, by the names of ``started``."""
    steps: list[ComparedStep] = []
    perturbed: bool = False
    """Whether parameters were changed in their last place after the first step, as the control's
    are: the others then show how far rounding grows."""
    buffers: dict[str, Sketch] = {}
    """Buffers after the compared steps."""
    sharded: bool = False
    """Whether each rank has a share of the parameters, so that ranks are not compared with each
    other."""
    without_optimizer: list[str] = []
    """Parameters that have a gradient and no optimizer."""
    samples_from: str | None = None
    """Where samples come from: ``loader``, ``samples_per_step``; None: they could not be counted,
    and iterations are."""
    written_files: list[str] = []
    """Some of the files outside the folder of its start that it wrote."""
    lines: list[LineUse] = []
    """Lines that take time in a step, or call collectives."""
    trackers: list[str] = []
    """Modules of experiment trackers that it imported, and that variables keep offline."""
    ports: list[int] = []
    """Ports that its process asked for, to meet other ranks."""
    store_files: list[str] = []
    """Files at which it meets other ranks (``torch.distributed.FileStore``)."""
    notes: list[str] = []
    """What the agent could not read, one sentence each."""


class LaunchRecord(Written):
    """One launch of one arm."""

    schema_version: int = SCHEMA_VERSION
    comparison_id: str
    plan_digest: str
    launch: int
    arm: str
    role: ArmRole
    backend: str
    transport: str
    launcher: str
    options: dict[str, Any] = {}
    environment: dict[str, str] = {}
    workload: str
    workload_options: dict[str, Any] = {}
    local_batch_size: int | None = None
    """The arm's own, by its plan or as it was fitted; None: the plan's."""
    python: str | None = None
    """The arm's own; None: the driver's."""
    commit: str | None = None
    """The arm's own, in full; None: the files in the working directory."""
    image: str | None = None
    """The image in which it ran, with the program that ran it."""
    unlike_work: dict[str, str] = {}
    """Differences in work to the arm that the gate compared this one with: a phrase by field."""
    sample_unit: str = "samples"
    world_size: int
    hosts: list[str] = []
    status: Literal["ok", "failed", "wrong", "timeout"]
    complete: bool = True
    """False: the launch was interrupted; its measurements until then count."""
    error: Failure | None = None
    command: str = ""
    """A shell command that runs the arm by itself, with the same settings. Empty where there is no
    driver."""
    commands: list[dict[str, Any]] = []
    """Each host's argv as started."""
    exit_codes: list[int | None] = []
    started_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    start_s: float | None = None
    """From the launcher's start until the slowest rank was ready for its first command."""
    measuring_s: float | None = None
    """Wall time of this launch's blocks, all arms together."""
    padding_bytes: int | None = None
    """Bytes by which the environment of all arms was padded in this launch; None where there is no
    driver."""
    launch_s: float | None = None
    """Wall time of the whole launch, all arms together: start, blocks, gate and end."""
    ranks: list[RankReport] = []
    parity: ParityResult | None = None
    peak_memory_bytes: list[int] = []
    """Per rank: peak resident memory on CPU, peak allocated device memory on GPU."""
    flops: FlopCount | None = None
    """Counted in the gate of the first launch. None in others, for a micro-benchmark, and for an
    arm by command."""
    cases: list[Case] = []
    """Cases of a micro-benchmark, in its order."""
    not_offered: dict[str, str] = {}
    """Why the arm cannot be measured in a case, by the case's name."""
    blocks: list[BlockRecord] = []
    scripts: list[ScriptReport] = []
    """For an arm by command, by rank: its settings and its first steps. On disk they are in
    ``script.json.gz``."""
    script_starts: int = 1
    """How often an arm's script was started in this launch: it is restarted where it ends before
    the launch."""
    epochs: list[EpochRecord] = []
    """Epochs of a plan with ``training``: each is also a block."""


class OtherEnvironment(Written):
    """Launches that were measured in another environment than the first ones, because a user asked
    for it.
    """

    launches: list[int] = []
    differences: list[str]
    """What changed, such as ``torch: 2.14.0 -> 2.15.0``."""
    environment: dict[str, Any]
    """See ``measurement.conditions.same_environment``."""


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
    """By name, of a plan that names hosts: fingerprint, MPI and interfaces."""
    slurm_job: str | None = None
    """The job of these nodes; a later job that resumes may have others of the same kind."""
    sources: dict[str, str] = {}
    """Digests of the source files of a user's workload, backends and launchers; ``sources/`` has
    copies."""
    elsewhere: list[OtherEnvironment] = []
    """Environments in which a user resumed (``--resume-elsewhere``); ``sources-1/`` has copies of
    the first one's sources."""
    notes: list[str] = []
    """Findings of a trial of the workload that readers should know."""
    warnings: list[str] = []
    """Differences between these hosts that are only reported."""
    looks: list[int] = []
    """The number of launches each time the verdicts were shown, or decided whether to go on: each
    look costs certainty."""
    fitted: dict[str, int] = {}
    """The largest local batch that memory holds, by the name of each arm with ``fit: memory``;
    found before anything was timed."""
    failed_points: dict[str, str] = {}
    """Why nothing, or no more, could be measured at a point of a study, by its name."""
    seconds: dict[str, float] = {}
    """``total``: how long the sessions took together, without searches for a batch. Older files
    have its parts, too."""


Row = Literal["step", "phase", "exchange", "library", "gradient"]
"""A whole step; a phase of the training thread; a collective; the library's own work; in earlier
traces, a parameter's finished gradient."""


class Span(Written):
    """A stretch of time on one rank."""

    row: Row
    name: str
    """A step's number, one of ``PHASES``, or what the library calls it."""
    rank: int = 0
    begin_ns: int
    """Since the epoch, by the rank's host; once it is stored, by the driver. A collective begins
    when its rank reaches it."""
    length_ns: int
    num_bytes: int | None = None
    """Bytes of a collective's tensors on this rank; None: not known."""
    entered_ns: int | None = None
    """When a collective began to move data, once all ranks had entered; None: not known."""
    tensors: list[str] = []
    """What was fused into a collective, where that is known."""

    @property
    def end_ns(self) -> int:
        """Where it ends, on the clock of ``begin_ns``."""
        return self.begin_ns + self.length_ns


class NcclCollective(Written):
    """How NCCL carries out a collective of one size."""

    operation: str | None = None
    """Such as ``AllReduce``; None where this release of NCCL does not say."""
    num_bytes: int
    algorithm: str
    """Such as ``RING``."""
    protocol: str
    """Such as ``SIMPLE``."""


class NcclChoices(Written):
    """What NCCL chose by itself, as its log says."""

    version: str | None = None
    network: str | None = None
    """Such as ``IB`` or ``Socket``."""
    channels: int | None = None
    """How many it has for collectives."""
    connections: list[str] = []
    """The kinds between ranks, such as ``P2P/CUMEM`` or ``NET/IB/GDRDMA``."""
    collectives: list[NcclCollective] = []
    """The largest, in the order of their sizes; those before the traced steps are among them."""


class ArmTrace(Written):
    """The trace of an arm."""

    arm: str
    file: str | None = None
    """The viewers' file, in the folder of the traces; None: there is none."""
    spans: list[Span] = []
    nccl: NcclChoices | None = None
    """None: it does not exchange over NCCL."""
    error: str | None = None
    """Why there is none."""


class Traces(Written):
    """The traces of a comparison."""

    schema_version: int = 1
    arms: list[ArmTrace]
