"""The messages between driver and ranks: the job, commands and replies. Plain JSON.

Driver and ranks share nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from measurement.errors import LaunchError
from measurement.plans.settings import EpochRecord, Precision, SpeedSettings, TrainingSettings
from measurement.records.block import BlockKind, BlockRecord, RankSteps, Sketch
from measurement.records.record import FlopCount, NcclChoices, RankReport, ScriptReport, Span

Read = TypeVar("Read")


class Message(BaseModel):
    """Base of all messages."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class Job(Message):
    """Everything that a rank needs to run as part of an arm.

    All ranks of the arm have an equal one.
    """

    arm: str
    backend: str
    transport: str | None = None
    options: dict[str, Any] = {}
    workload: str
    workload_options: dict[str, Any] = {}
    local_batch_size: int
    micro_steps: int = 1
    world_size: int
    """As the plan has it; a rank whose library counts another number refuses to run."""
    seed: int
    device: Literal["auto", "cpu", "cuda"] = "auto"
    affinity: str = "spread"
    freed_memory: str = "return"
    precision: Precision = "fp32"
    max_gradient_norm: float | None = None
    speed: SpeedSettings = SpeedSettings()
    training: TrainingSettings | None = None
    learning_rate_scale: int | None = None
    """The factor of ``learning_rate_scaling: linear``; None: ranks × micro-steps. A single process
    beside arms of many ranks has their global batch as its local one, and must scale as they do."""
    gate_batch_size: int | None = None
    """Samples of each rank in the gate if arms have different batches. None:
    ``local_batch_size``."""
    tries: int | None = None
    """Try a user's workload before the ranks connect: for a training of this many epochs; 0: for
    blocks; None: do not."""


class BlockCommand(Message):
    """Run one block and time it."""

    do: Literal["block"] = "block"
    turn: int
    round: int
    block: int
    kind: BlockKind = "sync"
    case: str | None = None
    """A micro-benchmark's; None if a workload is trained."""
    steps: int
    repetitions: int = 1
    """How often each step runs a micro-benchmark's operation."""
    warmup_steps: int = 0

    def record(self, steps: RankSteps) -> BlockRecord:
        """The block as one rank ran it."""
        header = self.model_dump(
            include={"turn", "round", "block", "kind", "case", "steps", "repetitions"}
        )
        return BlockRecord(**header, untimed_s=steps.untimed_s, ranks=[steps])


class EpochCommand(Message):
    """Train one epoch and evaluate. The first epoch builds the model, the others go on with it."""

    do: Literal["epoch"] = "epoch"
    turn: int
    epoch: int
    """From 0."""

    def record(self, steps: RankSteps) -> BlockRecord:
        """The epoch as a block of one rank."""
        place = {
            "turn": self.turn,
            "round": self.epoch,
            "block": self.epoch,
            "steps": len(steps.samples),
        }
        return BlockRecord(**place, kind="sync", untimed_s=steps.untimed_s, ranks=[steps])


class GateCommand(Message):
    """Take the parity gate: ``GATE_STEPS`` optimizer steps, or, in a micro-benchmark, every case
    once.
    """

    do: Literal["gate"] = "gate"
    after_blocks: bool
    """Whether the last report must be made before the gate, while the measured model exists."""
    counts_flops: bool = False
    """Whether rank 0 counts its FLOPs afterwards."""


class TraceCommand(Message):
    """Take some steps under torch's profiler and the library's timeline. None is timed."""

    do: Literal["trace"] = "trace"
    steps: int


class StartCommand(Message):
    """Connect, and build the first model."""

    do: Literal["start"] = "start"


class FinishCommand(Message):
    """Send the last report, disconnect and end."""

    do: Literal["finish"] = "finish"


Command = StartCommand | GateCommand | BlockCommand | EpochCommand | TraceCommand | FinishCommand
"""From the driver to every rank of an arm."""


Sketches = dict[str, Sketch]
"""By tensor name; see ``ringside_agent.reading.values``."""


class DriftReport(Message):
    """What must be equal on all ranks after the same steps; see
    ``runners.driver.gates``.
    """

    hyperparameters: dict[str, list[float]]
    """The numbers in the optimizer's parameter groups, by name."""
    parameters: dict[str, list[float]]
    """Some elements of each; empty if the backend shards them."""


class ParityReport(Message):
    """One rank's results of the parity gate."""

    gate: Literal["parity"] = "parity"
    started: Sketches
    """Parameters and buffers after ``prepare``, which must be rank 0's; of any dtype, as far as
    they can be sketched."""
    wanted: Sketches
    """Parameters and buffers before ``prepare``; rank 0's alone."""
    local: Sketches
    """Gradients of the bare model on this rank's first batch, at the weights ``prepare`` left."""
    synced: Sketches
    """Gradients after the first synchronised step."""
    ended: Sketches
    """Parameters after the gate's optimizer steps."""
    sizes: dict[str, int]
    """Number of elements, by tensor."""
    samples: str
    """Digest of the batches this rank consumed; empty: they hold no tensors."""
    gradient_scale: float | None
    tolerances: dict[str, float] = {}
    """Relative L2 error that each gradient may have: by its dtype, or the backend's or the
    precision's if these round more coarsely. A gradient that is not named here has float32's."""
    noise: dict[str, float] = {}
    """L2 norm of the effect of rounding on each of this rank's gradients; rank 0's alone."""
    not_compared: list[str] = []
    """Entries of the model's state that are no numbers, with their kind."""
    buffers: Sketches = {}
    """Buffers after the steps, except batch statistics, which differ by rank."""
    optimizer_state: Sketches = {}
    """After the steps, whole; rank 0's alone."""
    rounding: dict[str, float] = {}
    """The change of each parameter and optimizer state by a change of the gradients as small as
    rounding, relative to the step; rank 0's alone."""
    without_gradient: list[str] = []
    """Trainable parameters without a gradient in some step on this rank. Libraries differ in how
    they step them."""
    in_some_steps: list[str] = []
    """Those of them with a gradient in another step, so that the difference changes all later
    steps."""
    steps_zeros: bool = False
    """Whether the library set zero gradients for them, and its optimizer stepped with these."""
    drift: DriftReport | None = None
    """After the steps; parameters are those of ``ended``."""
    is_exact: bool = True
    """Whether the backend computes the mean of the gradients, and rounds it in float32 only."""
    flops: FlopCount | None = None
    """Counted by rank 0, if asked."""


class CheckReport(Message):
    """One rank's results of running every case of a micro-benchmark once, which replaces the parity
    gate.
    """

    gate: Literal["check"] = "check"
    failures: list[str]
    """One line for each wrong result: the case, the value seen, the right one."""
    not_offered: dict[str, str]
    """Why a case was not run, by its name."""


class EpochReport(Message):
    """One rank's results of an epoch and the evaluation after it."""

    kind: Literal["epoch"] = "epoch"
    steps: RankSteps
    """The evaluation is untimed."""
    losses: list[float]
    """Per step: the mean loss of this rank's batch."""
    learning_rates: list[float]
    """In the first and the last step."""
    top1: int | None = None
    top5: int | None = None
    """Correct predictions among this rank's samples while training; None: the workload does not
    report them."""
    held_out_loss_sum: float
    held_out_top1: int
    held_out_top5: int
    held_out_count: int
    drift: DriftReport | None = None


Can = Literal["block", "steps_apart", "gate", "epoch", "trace"]
"""What a rank may be asked for: steps under the clock, those without exchange, the parity gate,
whole epochs, a trace.

The floor takes steps without exchange only. It is compared with no other arm."""


class StartedReply(Message):
    """The rank is connected and has built its model."""

    kind: Literal["started"] = "started"
    report: RankReport
    can: list[Can]
    script: ScriptReport | None = None
    """A script's report, after the steps that are compared."""
    notes: list[str] = []
    """Notes from its trial of the workload."""


class GateReply(Message):
    """The rank's results of the gate."""

    kind: Literal["gate"] = "gate"
    report: Annotated[ParityReport | CheckReport, Field(discriminator="gate")]


class BlockReply(Message):
    """The steps that this rank timed in the block."""

    kind: Literal["block"] = "block"
    steps: RankSteps
    drift: DriftReport | None = None
    """Drift so far, if the arm is a script."""


class TraceReply(Message):
    """The traced steps of this rank."""

    kind: Literal["trace"] = "trace"
    spans: list[Span]
    """By its host's clock."""
    events: str
    """All other events for a viewer, see ``runners.traces``: JSON, compressed by gzip,
    in base64."""
    nccl: NcclChoices | None = None
    """By this rank's log."""


class FinishedReply(Message):
    """The rank's last report on the measured model: it ends now."""

    kind: Literal["finished"] = "finished"
    report: RankReport
    peak_memory_bytes: int
    drift: DriftReport | None = None
    """Drift of the model that was measured; None if nothing was trained."""
    written_files: list[str] = []
    """As in ``ScriptReport``, up to the end."""


class ErrorReply(Message):
    """The rank raised an exception, and ends now."""

    kind: Literal["error"] = "error"
    cause: Literal["bad input", "exception"]
    """``bad input``: an error in the plan or the data, which cannot follow from a lost peer."""
    message: str
    excerpt: list[str] = []
    """The lines of the user's code around it."""
    at_s: float
    """When it was raised, seconds since the epoch by the rank's host. The first error is the cause;
    the others follow from it."""


LOST_PEER = re.compile(
    r"(closed|reset) by peer|broken pipe|remote process exited|pair closure|has been shut down"
    r"|connection (refused|lost|closed|was likely closed)|network error|no route to host|timed?"
    r" ?out"
    r"|end of file|socket"
    r" closed|ncclRemoteError|DistStoreError|DistNetworkError|MPI_ERR_PROC_FAILED|MPI_Abort"
    r"|is killed by signal: Terminated",
    re.IGNORECASE,
)
"""Gloo, NCCL, Horovod, MPI, c10d's store and sockets; torch's loaders, whose processes a launcher
ends with the first rank."""

CAUSE_FIRST_S = 3.0
"""How much later a rank ends that lost a peer: launchers end all ranks with the first, and the
other must report the cause."""


def mentions_lost_peer(message: str) -> bool:
    """Whether an error is likely to follow from the failure of another rank. Pure."""
    return LOST_PEER.search(message) is not None


class EndedReply(Message):
    """A script ended by itself before it had carried out the command."""

    kind: Literal["ended"] = "ended"
    steps: int
    """Its number of steps in all."""
    exit_code: int | None = None
    """None: not known to the rank."""


Answer = (
    StartedReply | GateReply | BlockReply | EpochReport | EndedReply | TraceReply | FinishedReply
)
"""From one rank to the driver, for one command that it has carried out."""
Reply = Answer | ErrorReply


JOBS = TypeAdapter(Job)
COMMANDS: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="do")])
REPLIES: TypeAdapter[Reply] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])
"""For ``read_message``."""


def read_message(kind: TypeAdapter[Read], text: str | bytes) -> Read:
    """Read a message of the other side; raises a ``LaunchError`` where that is of other code."""
    try:
        return kind.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise LaunchError(
            f"the driver and its ranks run different code of Ringside ('{where}': {first['msg']});"
            " leave a checkout as it is while it runs, and install one version on all hosts"
        ) from error


COUNTS = ("top1", "top5", "held_out_top1", "held_out_top5", "held_out_count")


def combine(reports: Sequence[EpochReport], *, epoch: int) -> EpochRecord:
    """Make the record of an epoch from all ranks' reports, by rank.

    Counts and held-out sums are added, since each sample belongs to one rank. A step's loss is the
    mean over ranks, whose batches have the same size. Times are those of the slowest rank.
    """
    first, ranks = reports[0], [report.steps for report in reports]

    def total(name: str) -> int | None:
        counts = [getattr(report, name) for report in reports]
        return None if None in counts else sum(counts)  # None: a rank did not report it

    return EpochRecord(
        epoch=epoch,
        steps=len(first.losses),
        step_losses=[
            math.fsum(losses) / len(losses)
            for losses in zip(*(r.losses for r in reports), strict=True)
        ],
        learning_rates=first.learning_rates,
        count=sum(sum(steps.samples) for steps in ranks),
        train_s=max(sum(map(sum, steps.phases_s)) for steps in ranks),
        evaluate_s=max(steps.untimed_s for steps in ranks),
        held_out_loss_sum=math.fsum(report.held_out_loss_sum for report in reports),
        **{name: total(name) for name in COUNTS},
    )
