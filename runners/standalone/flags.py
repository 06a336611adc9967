"""The flags of the commands that run in every rank, and the checks of how they go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from measurement.errors import PlanError
from measurement.plans.plan_file import checked, parse_yaml
from measurement.plans.settings import TrainingSettings
from measurement.world import World
from workloads import workload_class

WorkloadName = Annotated[str, typer.Option(help="A workload, a torchvision model, or your own module:Class.")]
WorkloadOption = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Workload option; may be repeated.")]
DataDir = Annotated[str | None, typer.Option(help="Folder or file of the workload's data.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch missing data into --data-dir.")]
Pretrained = Annotated[str | None, typer.Option(help="State dict to start from, a file.")]
Workers = Annotated[int | None, typer.Option(help="Processes that load batches, per rank.")]
LocalBatchSize = Annotated[int, typer.Option(min=1, help="Samples per rank and micro-step.")]
MicroSteps = Annotated[int, typer.Option(min=1, help="Backward passes per optimizer step.")]
Precision = Annotated[str, typer.Option(help="fp32, amp-fp16 or amp-bf16.")]
Compile = Annotated[bool, typer.Option("--compile", help="torch.compile of the model as the backend wrapped it.")]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="Use PyTorch's channels-last memory format for images.")]
CudnnBenchmark = Annotated[bool, typer.Option("--cudnn-benchmark", help="cuDNN tries its algorithms and takes the fastest.")]
Tf32 = Annotated[bool, typer.Option("--tf32", help="TensorFloat-32 in matrix products and convolutions.")]
SyncBatchnorm = Annotated[bool, typer.Option("--sync-batchnorm", help="Use the library's batch norm over all ranks; on GPUs.")]
LossScale = Annotated[float | None, typer.Option(help="Loss scale of amp-fp16 at the start. [65536]")]
GrowthInterval = Annotated[int | None, typer.Option(help="Steps without overflow until the loss scale doubles. [2000]")]
MaxGradientNorm = Annotated[float | None, typer.Option(help="Clip averaged gradients to this norm.")]
Seed = Annotated[int, typer.Option(min=0, max=(1 << 32) - 1, help="Seed of weights and batches.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
BackendReference = Annotated[
    str | None, typer.Option("--backend", help="Backend of your own, by module:Class or path/to/file.py:Class.")
]
Transport = Annotated[str | None, typer.Option(help="gloo, nccl or mpi; default: what was built for the device.")]
BackendOption = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Backend option; may be repeated.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads per rank; default: OMP_NUM_THREADS, or a share of the cores.")]
Affinity = Annotated[str, typer.Option(help="spread: pin each rank to its share of the cores. none: leave it to the kernel.")]
FreedMemory = Annotated[str, typer.Option(help="keep: a rank keeps the memory it frees. return: as the C library has it.")]
NoLocal = Annotated[bool, typer.Option("--no-local", help="Leave out blocks without gradient exchange.")]
Interface = Annotated[str | None, typer.Option(help="Interface of every host, such as eth0; default: each library's.")]
Blocks = Annotated[int, typer.Option(min=1, help="Blocks to measure.")]
BlockSteps = Annotated[int, typer.Option(min=1, help="Steps in each block.")]
WarmupSteps = Annotated[int, typer.Option(min=0, help="Untimed steps before the first block.")]
ParitySteps = Annotated[int, typer.Option(min=0, help="Steps of the parity gate; 0: no gate.")]
Epochs = Annotated[int | None, typer.Option(help="Train for so many epochs, instead of measuring blocks.")]
TargetAccuracy = Annotated[float | None, typer.Option(help="Held-out top-1 accuracy at which to stop.")]
LearningRateScaling = Annotated[
    str | None, typer.Option(help="linear (by ranks and micro-steps), per-256 (the rate is meant for 256 samples) or none.")
]
WarmupEpochs = Annotated[float | None, typer.Option(help="Epochs until the scaled learning rate is reached. [0]")]
DecayEpochs = Annotated[int | None, typer.Option(help="Epochs after which the learning rate falls to a tenth, each time. [30]")]
CheckpointFile = Annotated[Path | None, typer.Option(help="Keep the training in this file, after every epoch.")]
CheckpointSteps = Annotated[int | None, typer.Option(min=1, help="Write the checkpoint also after every so many steps.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the training in the checkpoint.")]
StartEpoch = Annotated[int | None, typer.Option(min=0, help="Begin as if so many epochs were done.")]
PrintEvery = Annotated[int | None, typer.Option(min=1, help="Print a line every so many steps.")]
Evaluate = Annotated[bool, typer.Option("--evaluate", help="Train nothing: evaluate the checkpoint, or the weights to start from.")]
LearningRate = Annotated[float | None, typer.Option("--learning-rate", "--lr", help="Learning rate of the workload's optimizer.")]
Momentum = Annotated[float | None, typer.Option(help="Momentum of the workload's optimizer.")]
WeightDecay = Annotated[float | None, typer.Option(help="Weight decay of the workload's optimizer.")]
LabelSmoothing = Annotated[float | None, typer.Option(help="Label smoothing of the training loss.")]
NewHead = Annotated[bool, typer.Option("--new-head", help="Leave out weights of --pretrained for another number of classes.")]
TensorboardFolder = Annotated[Path | None, typer.Option(help="Write TensorBoard's event files into this folder.")]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds to wait for other ranks, to meet and in each exchange.")]
LocalRank = Annotated[
    int | None,
    typer.Option("--local-rank", "--local_rank", hidden=True, help="As torch.distributed.launch appends it; LOCAL_RANK says it."),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Results folder, a new one. [results/BACKEND-WORKLOAD-TIME]")]


def given(**values: Any) -> dict[str, Any]:
    """Those values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def settings(given: Sequence[str] | None, flag: str) -> dict[str, Any]:
    """``key=value`` pairs with values read as YAML."""
    pairs = [text.partition("=") for text in given or []]
    for key, equals, value in pairs:
        if not key or not equals:
            raise PlanError(f"{flag} {key + equals + value!r} is not of the form key=value")
    return {key: parse_yaml(value, source=f"{flag} {key}") for key, _, value in pairs}


def require_one_of(flag: str, value: str, known: Sequence[str]) -> None:
    """Refuse a word that is not on a list.

    Raises:
        PlanError: with the list.
    """
    if value not in known:
        raise PlanError(f"{flag} {value!r} is not known; use {', '.join(known[:-1])} or {known[-1]}")


def require_own_local_rank(given: int | None, world: World) -> None:
    """Refuse a ``--local-rank`` that is not what the launcher's variables say.

    Raises:
        PlanError: with both.
    """
    if given is not None and given != world.local_rank:
        raise PlanError(
            f"--local-rank {given}, but this process is local rank {world.local_rank} of {world.local_world_size} "
            f"(launcher: {world.launcher}); start it with torchrun, or with python -m torch.distributed.launch"
        )


SHORTHANDS = {
    "--data-dir": "data_dir",
    "--download": "download",
    "--pretrained": "pretrained",
    "--new-head": "new_head",
    "--workers": "loader_workers",
    "--learning-rate": "learning_rate",
    "--momentum": "momentum",
    "--weight-decay": "weight_decay",
    "--label-smoothing": "label_smoothing",
}
"""Flags that stand for an option of the workload."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What a training that stands alone is asked to do besides."""

    start_epoch: int = 0
    print_every: int | None = None
    evaluates_only: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Where checkpoints of a training are written, and how often."""

    path: Path
    every_steps: int | None
    """None: at the end of each epoch only."""
    resume: bool


def read_training(epochs: int | None, given: Mapping[str, Any]) -> TrainingSettings | None:
    """Read ``--epochs`` and the flags that need it; None: throughput is to be measured.

    Args:
        epochs: None where the flag was not given.
        given: flags by name, None where they were not given: fields of ``TrainingSettings`` and of ``CheckpointOptions``.

    Raises:
        PlanError: a flag without ``--epochs``, or a value that is not accepted.
    """
    present = {flag: value for flag, value in given.items() if value is not None and value is not False}
    if "--evaluate" in present:
        idle = [flag for flag in ("--start-epoch", "--print-every", "--checkpoint-steps") if flag in present]
        if epochs is not None or idle:
            raise PlanError(f"--evaluate trains nothing; leave {idle[0] if idle else '--epochs'} out")
        epochs = 1
    if epochs is None:
        for flag in present:
            raise PlanError(f"{flag} is for training to the end; say --epochs N with it, or leave it out to measure throughput")
        return None
    fields = {name: value for flag, value in present.items() if (name := _name(flag)) in TrainingSettings.model_fields}
    stop = {"stop_at_target": "target_accuracy" in fields}
    if "--start-epoch" in present and present["--start-epoch"] >= epochs:
        start = present["--start-epoch"]
        raise PlanError(f"--start-epoch {start} leaves nothing to do with --epochs {epochs}; epochs are counted from 0")
    if "--start-epoch" in present and "--resume" in present:
        raise PlanError("--start-epoch and --resume are both given; the checkpoint knows its epoch: leave --start-epoch out")
    return checked(TrainingSettings, {"epochs": epochs, **fields, **stop}, source="training")


def read_checkpoint_options(path: Path | None, *, every_steps: int | None, resume: bool) -> CheckpointOptions | None:
    """Read ``--checkpoint`` and the flags that need it.

    Raises:
        PlanError: one of those without it.
    """
    if path is not None:
        return CheckpointOptions(path=path, every_steps=every_steps, resume=resume)
    for flag, value in (("--checkpoint-steps", every_steps is not None), ("--resume", resume)):
        if value:
            raise PlanError(f"{flag} needs --checkpoint FILE, which says where the training is kept")
    return None


def workload_options(workload: str, options: Mapping[str, Any], shorthands: Mapping[str, Any]) -> dict[str, Any]:
    """Return a workload's options, those included that have flags of their own.

    Args:
        workload: its reference.
        options: given by ``--workload-option``.
        shorthands: values by flag, see ``SHORTHANDS``; None where they were not given.

    Raises:
        PlanError: the workload has no such option, or it is given twice.
    """
    present = {flag: value for flag, value in shorthands.items() if value is not None and value is not False}
    known = workload_class(workload)[0].Options.model_fields if present else {}
    for flag in present:
        name = SHORTHANDS[flag]
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise PlanError(f"{flag}: workload '{workload}' has no option '{name}' (it has: {listed}); leave it out")
        if name in options:
            raise PlanError(f"{flag} and --workload-option {name} are both given; leave one out")
    return {**options, **{SHORTHANDS[flag]: value for flag, value in present.items()}}


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
