"""What is stored of a comparison: one record and one table of steps per launch and arm, and one
manifest.

Raw samples are stored, derived numbers never. Every file carries ``schema_version``. Reading and
writing: ``records.results``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from measurement.plans.settings import ArmRole, EpochRecord
from measurement.records.host_use import HostUse
from measurement.records.record_types import BlockSteps, Phases, Written
from measurement.records.script_report import ScriptReport

SCHEMA_VERSION = 1
"""Version of records and manifests. An incompatible change gets the next number, and an entry in
``MIGRATIONS``."""

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
    "exchange_s": "float64",
    "step_s": "float64",
}
"""steps.parquet: one row per rank and timed step, see ``BlockRecord.columns``. ``turn`` counts the
blocks of all arms in the order they ran in this launch, ``block`` those of this arm, ``round`` the
rounds. ``kind`` is ``sync`` or ``local``. ``samples`` are this rank's. Times are seconds on the
rank's own clock; the phases sum to ``step_s``. ``exchange_s``: see ``PHASES``; older files have
none.

``case`` is null unless the workload is a micro-benchmark. There it names the case, and a step is
the block's ``repetitions`` of its operation. All of the time is in ``backward_s``, where training
exchanges gradients. ``samples`` are the bytes of the messages, counted once for all ranks: on rank
0."""

LOSS_COLUMNS = {
    "rank": "int32",
    "start": "int32",
    "step": "int64",
    "samples": "int64",
    "loss": "float64",
}
"""losses.parquet: one row per rank and step of a script, timed or not. ``step`` counts from 0 at
the script's start, and ``start`` how often the script was started before in this launch;
``samples`` are this rank's in the step."""


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
    """Cores the rank may run on; empty where the platform does not report them."""
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
    """``measurement.conditions.conditions.fingerprint()`` of the rank's host."""
    sources: dict[str, str] = {}
    """Digests of the source files of a user's workload; see ``measurement.conditions.sources``."""
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


BlockKind = Literal["sync", "local"]
"""``sync``: ranks exchange gradients, as in training. ``local``: they do not."""


class CoreUse(Written):
    """Use of one rank's cores while a block ran, untimed steps included
    (``ringside_agent.machine``).
    """

    machine: str
    """Whose cores they are. Hosts of one kernel, such as a node's pods, are one machine."""
    cores: list[int]
    wall_s: float
    busy_s: float
    """CPU seconds of all cores together, of all processes."""
    steal_s: float
    """Seconds that a hypervisor gave to other guests."""
    own_s: float
    """CPU time of the rank's process and its children."""
    other_threads_s: float | None = None
    """CPU time of the process's threads besides the training thread: the library's, and torch's own
    where it has several."""


class ThreadTimes(Written):
    """What the threads of a rank did during a block's timed steps
    (``ringside_agent.machine``), in seconds.

    The rest of the training thread's time is waiting: for peers, a loader, a disk, or a device.
    """

    running_s: float
    """Time of the training thread on a core."""
    runnable_s: float
    """Time of the training thread, ready to run while another thread had the core."""
    library_s: float
    """CPU time of the library's threads: those that appeared when it was set up."""
    others_s: float
    """CPU time of all other threads: torch's own, where it has several."""


class RankSteps(Written):
    """What one rank timed in one block."""

    rank: int
    untimed_s: float
    """Rebuild and warm-up steps; of an epoch, its evaluation."""
    samples: list[int]
    """int [steps]: this rank's, in the workload's unit."""
    phases_s: Phases
    """float64 [steps, len(PHASES)], seconds on this rank's clock."""
    skipped_steps: int = 0
    """Timed steps whose gradients overflowed in fp16: the optimizer took no step."""
    restarts: int = 0
    """How often the batches ended in the timed steps and were restarted."""
    wrong: str | None = None
    """What was wrong with a micro-benchmark's result before the timed steps; None: nothing."""
    core_use: CoreUse | None = None
    """None where the kernel does not report it."""
    threads: ThreadTimes | None = None
    """None where the kernel does not report it, and for a micro-benchmark or an epoch."""
    start: int = 0
    """How often a script was started in this launch before this block."""
    first_step: int | None = None
    """Number of the script's step, from 0, with which the block's untimed steps began; None of a
    workload."""
    losses: list[float] = []
    """Mean loss of each step of a script's block, untimed ones included; NaN where none was
    seen."""
    loss_samples: list[int] = []
    """A script's samples in those steps, on this rank."""
    gaps: list[tuple[int, float]] = []
    """Timed steps of a script that contain a long pause, such as an evaluation, and its seconds."""
    page_faults: int | None = None
    """Minor ones of the rank's process in the timed steps (``ru_minflt``, getrusage(2)); None of a
    micro-benchmark or an epoch."""


class BlockRecord(Written):
    """One block: which it was, when it ran, and what its ranks timed.

    An epoch of training is a block, too.

    A rank makes it with its own steps in ``ranks``; ``joined`` combines those of all ranks. On disk
    ``ranks`` become ``steps.parquet`` (``columns``) and ``losses.parquet``, ``hosts`` become
    ``hosts.parquet``. ``record.json`` has the rest.
    """

    turn: int
    """Its number among the blocks of all arms in this launch, in the order they ran."""
    round: int
    block: int
    """Its number among this arm's blocks in this launch."""
    kind: BlockKind
    case: str | None = None
    """The case of a micro-benchmark."""
    steps: int
    repetitions: int = 1
    """How often a micro-benchmark repeats its operation in each step."""
    started_s: float = 0.0
    """Seconds since this launch's blocks began."""
    wall_s: float = 0.0
    """From the command to the last rank's reply, without stopping and continuing ranks."""
    untimed_s: float = 0.0
    """The longest of the ranks'."""
    skipped_steps: int = 0
    """The most of the ranks'."""
    restarts: int = 0
    """The most of the ranks'."""
    link_bytes: dict[str, tuple[int, int]] = {}
    """Bytes each host sent and received over the plan's interface while the block ran, untimed
    steps included; not on one host."""
    foreign_share: float | None = None
    """Share of the ranks' cores that other processes took meanwhile; ticks may make it slightly
    negative. None: not known."""
    steal_share: float | None = None
    """Share that a hypervisor's other guests took. None: not known."""
    other_threads_share: float | None = None
    """CPU seconds a second that a rank's threads besides its training thread took: mean over
    ranks."""
    threads: ThreadTimes | None = None
    """The mean over ranks; None where a rank has none."""
    page_faults: float | None = None
    """The mean over ranks; None where a rank has none."""
    gaps: list[tuple[int, float]] = []
    """See ``RankSteps.gaps``; of each step the longest of the ranks'."""
    ranks: list[RankSteps] = []
    """By rank; empty where the record was read from a file, or ``packed``."""
    hosts: dict[str, HostUse] = {}
    """What the arm's hosts did meanwhile; empty where the record was read from a file, or no driver
    read their counters."""
    _columns: BlockSteps | None = PrivateAttr(default=None)

    @classmethod
    def joined(cls, block: BlockRecord, ranks: Sequence[RankSteps], **measured: Any) -> BlockRecord:
        """Make the record of a block from ``block``, one rank's, and the steps of all ranks, at
        least one.

        ``measured``: fields that only the caller knows.
        """
        load = load_of([steps.core_use for steps in ranks if steps.core_use])
        names = ("untimed_s", "skipped_steps", "restarts")
        longest = {name: max(getattr(steps, name) for steps in ranks) for name in names}
        faults = [steps.page_faults for steps in ranks if steps.page_faults is not None]
        # by step, the longest last
        gaps = dict(sorted(gap for steps in ranks for gap in steps.gaps))
        update = {
            "ranks": list(ranks),
            "gaps": list(gaps.items()),
            "threads": mean_times([steps.threads for steps in ranks]),
            "page_faults": fmean(faults) if len(faults) == len(ranks) else None,
        }
        return block.model_copy(update=update | longest | load | measured)

    def packed(self) -> BlockRecord:
        """A copy with its steps in columns only.

        The block's own fields have the other figures of its ranks.
        """
        block = self.model_copy(update={"ranks": []})
        block._columns = self.columns
        return block

    @property
    def columns(self) -> BlockSteps:
        """All ranks' steps."""
        if self._columns is not None:
            return self._columns
        return BlockSteps.of(
            [steps.rank for steps in self.ranks],
            samples=[steps.samples for steps in self.ranks],
            phases_s=[steps.phases_s for steps in self.ranks],
        )


def ranks_of(blocks: Sequence[BlockRecord]) -> list[RankSteps]:
    """All ranks' steps of a block, from the record of each."""
    return [steps for block in blocks for steps in block.ranks]


def load_of(uses: Sequence[CoreUse]) -> dict[str, Any]:
    """The load fields of a block from its ranks' core use.

    Ranks that share cores count the same cores, and each its own time.
    """
    places = [(use.machine, tuple(use.cores)) for use in uses]
    counts = Counter(places)
    capacity_s = busy_s = steal_s = own_s = 0.0
    for use, place in zip(uses, places, strict=True):
        share = 1 / counts[place]
        capacity_s += share * use.wall_s * len(use.cores)
        busy_s += share * use.busy_s
        steal_s += share * use.steal_s
        own_s += use.own_s
    if not capacity_s:
        return {}
    other_threads = [
        use.other_threads_s / use.wall_s
        for use in uses
        if use.other_threads_s is not None and use.wall_s
    ]
    return {
        "foreign_share": (busy_s - own_s) / capacity_s,
        "steal_share": steal_s / capacity_s,
        "other_threads_share": fmean(other_threads) if other_threads else None,
    }


def mean_times(times: Sequence[ThreadTimes | None]) -> ThreadTimes | None:
    """The mean over ranks; None where a rank has none."""
    measured = [time.model_dump() for time in times if time is not None]
    if not measured or len(measured) < len(times):
        return None
    return ThreadTimes(**{name: fmean(time[name] for time in measured) for name in measured[0]})


class FlopCount(Written):
    """Floating-point operations of a forward and a backward pass of rank 0
    (``measurement.probes.flops``).
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
    """Where the time went, summed over sessions: ``total``, ``starting``, ``training`` (timed and
    untimed steps), ``other``. Searches for a batch are not among them."""
