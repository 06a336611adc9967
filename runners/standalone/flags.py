"""The flags of a standalone run in one table, and how they go together. A new flag is one line here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from measurement.errors import PlanError
from measurement.plans.options import checked
from measurement.plans.plan import Arm, Measurement, Plan
from measurement.plans.plan_file import parse_yaml
from measurement.plans.settings import LossScale, Section, SpeedSettings, TrainingSettings
from measurement.world import World
from runners.flags import Flag, Given, values_of
from workloads import workload_class
from workloads.data.data_files import FetchOptions
from workloads.data.input import InputOptions
from workloads.supervised import SGDOptions


class RunOptions(Section):
    """What a standalone run is asked besides its plan."""

    backend: str | None = None
    """Use another backend: single, dp, naive, fsdp2, or your own by module:Class or path/to/file.py:Class."""
    parity_steps: int = Field(default=3, ge=0)
    """Optimizer steps of the parity gate. 0: no gate."""
    no_local: bool = False
    """Leave out blocks without gradient exchange. The report then cannot say why."""
    tensorboard: Path | None = None
    """Write TensorBoard's event files into this folder."""
    timeout: float = Field(default=300.0, ge=1)
    """Seconds to wait for other ranks, to meet and in each exchange."""
    local_rank: int | None = None
    """torch.distributed.launch appends this. It must be what LOCAL_RANK says."""
    output: Path | None = None
    """Results folder, a new one. [results/BACKEND-WORKLOAD-TIME]"""


class TrainingOptions(Section):
    """What a standalone training is asked besides the rules that all arms train by."""

    print_every: int | None = Field(default=None, ge=1)
    """Print a line every so many steps."""


MEASURING, TRAINING, DATA, LAUNCH = "Measuring", "Training", "Data", "Launch"
_plan, _measurement, _speed = (partial(Flag, MEASURING, model) for model in (Plan, Measurement, SpeedSettings))
_training, _trainer = (partial(Flag, TRAINING, model, is_optional=True) for model in (TrainingSettings, TrainingOptions))
_data, _optimizer = partial(Flag, DATA, FetchOptions, default=None), partial(Flag, TRAINING, SGDOptions, default=None)
_launch, _run = partial(Flag, LAUNCH, Plan), partial(Flag, LAUNCH, RunOptions)

WORKLOAD = Flag(DATA, Plan, "workload", default="digits")
WORKLOAD_OPTION = Flag(
    DATA, Plan, "workload_options", ("--workload-option",), help="Option of the workload. May be repeated.", metavar="KEY=VALUE"
)
FLAGS: Sequence[Flag] = (
    _plan("local_batch_size"),
    _plan("micro_steps", help="Backward passes accumulated into one optimizer step."),
    _measurement("rounds", ("--blocks",), default=10, help="Blocks to measure."),
    _measurement("block_steps", default=20, help="Timed steps in each block."),
    _measurement("warmup_steps", default=10, help="Untimed steps before the first block."),
    Flag(MEASURING, RunOptions, "parity_steps"),
    Flag(MEASURING, RunOptions, "no_local"),
    _plan("precision"),
    Flag(MEASURING, LossScale, "initial", ("--loss-scale",), help="Loss scale of amp-fp16 at the start."),
    Flag(MEASURING, LossScale, "growth_interval", ("--loss-scale-growth-interval",)),
    _plan("max_gradient_norm"),
    *map(_speed, SpeedSettings.model_fields),
    Flag(MEASURING, RunOptions, "output", ("-o", "--output")),
    _training("epochs", help="Train for so many epochs, instead of measuring blocks."),
    _training("target_accuracy", help="Held-out top-1 accuracy at which to stop."),
    _training("learning_rate_scaling"),
    _training("warmup_epochs"),
    _training("decay_epochs", help="Epochs after which the learning rate falls to a tenth, each time."),
    _optimizer("learning_rate", ("--learning-rate", "--lr")),
    *map(_optimizer, ("momentum", "weight_decay", "label_smoothing")),
    *map(_trainer, TrainingOptions.model_fields),
    Flag(TRAINING, RunOptions, "tensorboard"),
    WORKLOAD,
    WORKLOAD_OPTION,
    _data("data_dir"),
    _data("download", help="Download missing data into --data-dir."),
    _data("pretrained"),
    _data("new_head", help="Leave out weights of --pretrained for another number of classes."),
    _data("loader_workers", ("--workers",)),
    Flag(DATA, Plan, "seed", help="Seed of the weights and the batches."),
    _run("backend"),
    Flag(LAUNCH, Arm, "options", ("--option",), help="Option of the backend. May be repeated.", metavar="KEY=VALUE"),
    Flag(LAUNCH, Arm, "transport"),
    _launch("threads", help="Threads of each rank. Default: OMP_NUM_THREADS, or a share of the cores."),
    _launch("affinity"),
    _launch("freed_memory"),
    _launch("device"),
    _run("timeout"),
    _run("local_rank", ("--local-rank", "--local_rank"), is_hidden=True),
)
SECTIONS: Mapping[str, type[BaseModel]] = {"measurement": Measurement, "speed": SpeedSettings, "loss_scale": LossScale}


def settings(given: Sequence[str] | None, flag: str) -> dict[str, Any]:
    """Return ``key=value`` pairs, with values read as YAML."""
    pairs = [text.partition("=") for text in given or []]
    for key, equals, value in pairs:
        if not key or not equals:
            raise PlanError(f"{flag} {key + equals + value!r} is not of the form key=value")
    return {key: parse_yaml(value, source=f"{flag} {key}") for key, _, value in pairs}


def plan_content(given: Given) -> dict[str, Any]:
    """Return what the flags say of a plan; what a standalone run must not or may leave out is as it has it.

    Raises:
        PlanError: a value that is not accepted, or flags that do not go together.
    """
    content = values_of(given, Plan)
    norm = content.get("max_gradient_norm")
    if norm is not None and not norm > 0:
        raise PlanError(f"--max-gradient-norm {norm:g} is not greater than 0; leave it out to clip nothing")
    training = read_training(given)
    return {
        **content,
        **{section: values_of(given, model) for section, model in SECTIONS.items()},
        "workload_options": workload_options(given),
        "training": training.model_dump() if training else None,
    }


def read_training(given: Given) -> TrainingSettings | None:
    """Read ``--epochs`` and the flags that need it; None: throughput is to be measured.

    Raises:
        PlanError: a flag without ``--epochs``, or a value that is not accepted.
    """
    asked = values_of(given, TrainingSettings)
    epochs = asked.pop("epochs", None)
    named = [flag.name for flag in given if flag.model in (TrainingSettings, TrainingOptions) and flag.field != "epochs"]
    if epochs is None:
        if named:
            raise PlanError(f"{named[0]} is for training to the end; say --epochs N with it, or leave it out to measure throughput")
        return None
    content = {"epochs": epochs, **asked, "stop_at_target": "target_accuracy" in asked}
    return checked(TrainingSettings, content, source="training")


def workload_options(given: Given) -> dict[str, Any]:
    """Return the workload's options, those included that have flags of their own.

    Raises:
        PlanError: the workload has no such option, or it is given twice.
    """
    workload, options = values_of(given, Plan)["workload"], settings(given.get(WORKLOAD_OPTION), WORKLOAD_OPTION.name)
    own = {flag: value for flag, value in given.items() if issubclass(flag.model, InputOptions)}
    model = workload_class(workload)[0].Options
    known, takes_more = model.model_fields if own else {}, model.model_config.get("extra") == "allow"
    for flag in own:
        if flag.field not in known and not takes_more:
            listed = ", ".join(sorted(known)) or "none"
            raise PlanError(f"{flag.name}: workload '{workload}' has no option '{flag.field}' (it has: {listed}); leave it out")
        if flag.field in options:
            raise PlanError(f"{flag.name} and --workload-option {flag.field} are both given; leave one out")
    return {**options, **{flag.field: str(one) if isinstance(one, Path) else one for flag, one in own.items()}}


def require_own_local_rank(given: int | None, world: World) -> None:
    """Refuse a ``--local-rank`` that is not what the launcher's variables say, with a ``PlanError``."""
    if given is not None and given != world.local_rank:
        raise PlanError(
            f"--local-rank {given}, but this process is local rank {world.local_rank} of {world.local_world_size} "
            f"(launcher: {world.launcher}); start it with torchrun, or with python -m torch.distributed.launch"
        )
