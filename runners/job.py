"""What one rank is asked to do, and the words driver and ranks exchange. Plain JSON through the driver's store."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from measurement.record import RankReport
from measurement.training import Precision, Training


class Message(BaseModel):
    """Base of what is exchanged."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class Job(Message):
    """Everything a rank needs to train, or to repeat operations, as one of an arm. The same for all ranks of the arm."""

    arm: str
    backend: str
    transport: str | None = None
    options: dict[str, Any] = {}
    workload: str
    workload_options: dict[str, Any] = {}
    local_batch_size: int
    micro_steps: int = 1
    world_size: int
    """Asked for; a rank that counts otherwise refuses to go on."""
    seed: int
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Precision = "fp32"
    max_gradient_norm: float | None = None
    training: Training | None = None
    learning_rate_scale: int | None = None
    """What ``learning_rate_scaling: linear`` multiplies by; None: ranks × micro-steps. One process beside many ranks has
    their global batch for its local one, and must scale as they do."""


class Command(Message):
    """From the driver to every rank of an arm."""

    do: Literal["start", "parity", "block", "epoch", "finish"]
    epoch: int = 0
    """From 0; the first builds the model, the others go on with it."""
    steps: int = 0
    warmup_steps: int = 0
    kind: Literal["sync", "local"] = "sync"
    case: str = ""
    """Of a micro-benchmark; empty in training."""
    repetitions: int = 1
    """Of a micro-benchmark's operation in each step."""
    rebuild: bool = True
    layout: int | None = None
    """Seed of the random allocations before a rebuild; None: none are made."""


Sketches = dict[str, list[float]]
"""By tensor name: float64 [num_projections]; see ``runners.parity``."""


class ParityReport(Message):
    """What one rank saw in the parity gate."""

    started: Sketches
    """Parameters and buffers after ``prepare``, which must be rank 0's."""
    wanted: Sketches
    """This rank's before ``prepare``; only rank 0's is used."""
    local: Sketches
    """Gradients of the bare model on this rank's first batch, at the weights ``prepare`` left."""
    synced: Sketches
    """Gradients after the first synchronised step."""
    ended: Sketches
    """Parameters after the gate's optimizer steps."""
    sizes: dict[str, int]
    """Elements by parameter."""
    samples: str
    """Digest of the batches this rank consumed."""
    gradient_scale: float | None
    gradient_tolerance: float


class CheckReport(Message):
    """What one rank saw when it ran every case of a micro-benchmark once: the parity gate's place."""

    cases: int
    """That it ran."""
    failures: list[str]
    """One line for each wrong result: the case, the value seen, the right one."""
    not_offered: dict[str, str]
    """Why not, by the case's name."""


class BlockReport(Message):
    """What one rank timed in one block."""

    rank: int
    untimed_s: float
    samples: list[int]
    """Per step."""
    phases_s: list[list[float]]
    """[steps][len(PHASES)], seconds."""
    wrong: str | None = None
    """A micro-benchmark's result that was found wrong before the timed steps."""


class EpochReport(Message):
    """What one rank saw in one epoch of training and the evaluation after it."""

    rank: int
    samples: list[int]
    """Per step, in the workload's unit."""
    phases_s: list[list[float]]
    """[steps][len(PHASES)], seconds."""
    losses: list[float]
    """Per step: the mean loss of this rank's batch."""
    learning_rates: list[float]
    """Of the first and the last step."""
    count: int
    """Training samples that were ranked."""
    top1: int | None = None
    top5: int | None = None
    evaluate_s: float
    held_out_loss_sum: float
    held_out_top1: int
    held_out_top5: int
    held_out_count: int


class Reply(Message):
    """From one rank to the driver, for one command."""

    error: str | None = None
    """An exception's text: the rank is about to end."""
    error_at_s: float = 0.0
    """When it was raised, seconds since the epoch: the first to raise is the cause, the others lost a peer."""
    report: RankReport | None = None
    parity: ParityReport | None = None
    check: CheckReport | None = None
    block: BlockReport | None = None
    epoch: EpochReport | None = None
    peak_memory_bytes: int | None = None


def command_key(arm: str, launch: int, number: int) -> str:
    """Where the ``number``-th command of an arm lies."""
    return f"{launch}/{arm}/command/{number}"


def reply_key(arm: str, launch: int, number: int, rank: int) -> str:
    """Where a rank's reply to it lies."""
    return f"{launch}/{arm}/reply/{number}/{rank}"


def job_key(arm: str, launch: int) -> str:
    """Where the arm's job lies."""
    return f"{launch}/{arm}/job"


def encode(message: Message) -> str:
    """To the store."""
    return message.model_dump_json()


def decode_command(data: bytes) -> Command:
    """From the store."""
    return Command.model_validate(json.loads(data))
