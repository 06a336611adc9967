"""Sections of a plan and options of its arms, how they are checked, and the records of a training's
epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.config import ExtraValues

from measurement.errors import PlanError, cut, joined, quoted, unknown_name

Precision = Literal["fp32", "tf32", "amp-fp16", "amp-bf16"]
Quantity = Literal[
    "train_loss", "train_top1", "train_top5", "held_out_loss", "held_out_top1", "held_out_top5"
]
"""Means over an epoch's samples; top1 and top5 are shares of right answers."""
Batches = Literal["own", "fit"]
"""Where arms' own batches come from: the plan gives some of them, or all are the largest that
memory holds."""
ArmRole = Literal["baseline", "control", "candidate", "floor"]
"""What an arm is for."""


class PlanOptions(BaseModel):
    """Options of a backend or workload, which refuse unknown names; these have none."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Section(PlanOptions):
    """A frozen part of a plan that refuses keys it does not know."""

    model_config = ConfigDict(allow_inf_nan=False)


class TrainingSettings(Section):
    """A plan's section: every arm trains for so many epochs, under the same rules, once for each
    launch's seed.

    The learning rate of an optimizer step is the workload's × scale × warm-up × decay, the same in
    every arm:

    - scale: ``linear``, the global batch over the local batch (ranks × micro-steps); ``per-256``,
      the global batch over 256 samples, for which published rates are often meant (Goyal et al.);
      ``none``, 1;
    - warm-up: rises linearly from 1/scale to 1 over ``warmup_epochs``, step by step (Goyal et al.
      2017, arXiv:1706.02677);
    - decay: a tenth for every full 30 epochs (He et al. 2016, arXiv:1512.03385), unless the
      workload has a schedule of its own.
    """

    epochs: int = Field(ge=1)
    """Epochs that every arm trains."""
    target_accuracy: float | None = Field(default=None, gt=0, le=1)
    """Held-out top-1 accuracy. Time to accuracy is the training time until an epoch first ends with
    it; training goes on."""
    learning_rate_scaling: Literal["linear", "per-256", "none"] = "none"
    """``linear``: times ranks and micro-steps. ``per-256``: times the global batch over 256
    samples. ``none``: unchanged."""
    warmup_epochs: float = Field(default=0.0, ge=0)
    """Epochs until the scaled learning rate is reached, step by step."""

    def is_reached(self, epoch: EpochRecord) -> bool:
        """Whether an epoch ended with the target accuracy."""
        if self.target_accuracy is None or not epoch.held_out_count:
            return False
        return epoch.held_out_top1 >= self.target_accuracy * epoch.held_out_count

    def time_to_accuracy_s(self, epochs: Sequence[EpochRecord]) -> float | None:
        """Training seconds until the end of the first epoch with the target accuracy; None where
        none has it.
        """
        spent_s = 0.0
        for epoch in epochs:
            spent_s += epoch.train_s
            if self.is_reached(epoch):
                return spent_s
        return None


class EpochRecord(BaseModel):
    """One epoch of one arm in one launch, over all ranks.

    Sums, counts and raw times; means and rates are derived.
    """

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    epoch: int
    """From 0."""
    steps: int
    step_losses: list[float]
    """Per optimizer step: the mean loss of the global batch."""
    learning_rates: list[float]
    """Those of the first and the last step."""
    count: int
    """Training samples seen, all ranks."""
    top1: int | None = None
    top5: int | None = None
    """Right answers while training; None: the workload does not count them."""
    train_s: float
    """Training seconds of the slowest rank, its data wait included."""
    evaluate_s: float = 0.0
    held_out_loss_sum: float = 0.0
    held_out_top1: int = 0
    held_out_top5: int = 0
    held_out_count: int = 0
    """Every held-out sample once; 0: nothing is held out."""

    def figures(self) -> dict[Quantity, float]:
        """Mean losses and accuracies, those that are known."""
        held_out = self.held_out_count
        sums: dict[Quantity, tuple[float | None, int]] = {
            "train_loss": (math.fsum(self.step_losses), len(self.step_losses)),
            "train_top1": (self.top1, self.count),
            "train_top5": (self.top5, self.count),
            "held_out_loss": (self.held_out_loss_sum, held_out),
            "held_out_top1": (self.held_out_top1, held_out),
            "held_out_top5": (self.held_out_top5, held_out),
        }
        return {
            name: total / number
            for name, (total, number) in sums.items()
            if number and total is not None
        }


class SpeedSettings(Section):
    """A plan's section. Keys that are left out have PyTorch's defaults."""

    compile: bool = False
    """Use ``torch.compile`` on the model as the backend wrapped it. Compiling is not timed."""
    channels_last: bool = False
    """Keep image models and batches in PyTorch's channels-last memory format."""
    cudnn_benchmark: bool = False
    """Let cuDNN try its algorithms for each new shape and take the fastest."""
    sync_batchnorm: bool = False
    """Use each framework's synchronised batch norm (``torch.nn.SyncBatchNorm``,
    ``hvd.SyncBatchNorm``), on GPUs only. Forward passes then exchange, so there is no step without
    exchange and no floor."""

    def check_device(self, kind: str) -> None:
        """Refuse settings that a kind of device, ``cpu`` or ``cuda``, has not.

        Raises:
            PlanError: with the libraries' reason.
        """
        if self.sync_batchnorm and kind != "cuda":
            raise PlanError(
                "speed.sync_batchnorm: this run is on the CPU, and the synchronised batch norms of"
                " PyTorch and Horovod refuse that ('SyncBatchNorm expected input tensor to be on"
                " GPU'); leave it out"
            )


Model = TypeVar("Model", bound=BaseModel)
OptionsElsewhere = Callable[[], Mapping[str, str]]
"""Returns names that are options in another place, with the place; called only where a name is
unknown."""


def checked(
    model: type[Model],
    content: Mapping[str, Any],
    *,
    source: str,
    elsewhere: OptionsElsewhere = dict,
    extra: ExtraValues | None = None,
) -> Model:
    """``model`` made from ``content``, or one PlanError with every unknown key (and the closest
    known one) and bad value.

    ``extra``: "ignore" leaves unknown keys out.
    """
    try:
        return model.model_validate(content, extra=extra)
    except ValidationError as error:
        places = elsewhere()
        raise PlanError(
            f"{source}: {joined([_explain(model, issue, places) for issue in error.errors()])}"
        ) from error


def _explain(model: type[BaseModel], issue: Any, elsewhere: Mapping[str, str]) -> str:
    place = cut(".".join(str(part) for part in issue["loc"]))
    if issue["type"] == "extra_forbidden":
        *section, name = issue["loc"]
        where = f" in '{cut('.'.join(map(str, section)))}'" if section else ""
        return (
            unknown_name("option", str(name), fields_at(model, section), elsewhere=elsewhere)
            + where
        )
    if issue["type"] == "missing":
        return f"'{place}' is missing"
    message = issue["msg"].removeprefix("Value error, ")
    return f"{place} = {quoted(issue['input'])}: {cut(message)}" if place else cut(message)


def fields_at(model: type[BaseModel], path: Iterable[str | int]) -> list[str]:
    """The field names of the section at ``path``."""
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:  # a name, such as an arm's
            continue
        kinds = (field.annotation, *get_args(field.annotation))
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)


BY_COMMAND = "for arms by command"
BY_BACKEND = "for arms of a backend"
IN_IMAGE = "in an image, which has its own packages"
IN_TRAINING = "with training, whose blocks are epochs"
OWN_BATCHES = "where arms have batches of their own"
FITTED = "with fit: memory, which leaves none for an arm that waits"
WITHOUT_HOSTS = "without hosts, which name several machines"
FOR_HOSTS = ("network_interface", "driver_address", "nodes")
"""Fields of a plan that mean nothing on one machine."""
MEANINGLESS = {
    BY_COMMAND: (
        "fit transport launcher options workload_options container training points trace nodes"
    ),
    BY_BACKEND: "samples_per_step iteration_ends untimed impose packages image scripts",
    IN_IMAGE: "python packages",
    OWN_BATCHES: "training points",
    WITHOUT_HOSTS: " ".join(FOR_HOSTS),
}
"""Keys that mean nothing in some plans and arms: only their default is accepted there."""
NEUTRAL: dict[str, dict[str, Any]] = {
    BY_COMMAND: {"floor": False, "local_every": 0},
    IN_TRAINING: {"control": False, "local_every": 0, "minutes": None, "max_minutes": None},
    FITTED: {"mode": "sequential"},
}
"""Keys of ``measurement`` that mean nothing there, with their values then."""


def require_meaning(section: Any, where: str) -> None:
    """Refuse keys that mean nothing there, in a plan or an arm."""
    fields = type(section).model_fields
    meaningless = [
        name
        for name in MEANINGLESS.get(where, "").split()
        if name in fields and getattr(section, name) != fields[name].default
    ]
    if "measurement" in fields:
        meaningless += [
            f"measurement.{name}"
            for name, only in NEUTRAL.get(where, {}).items()
            if getattr(section.measurement, name) != only
        ]
    if meaningless:
        raise ValueError(f"{meaningless[0]} means nothing {where}; leave it out")


def with_neutral(content: dict[str, Any], where: str) -> dict[str, Any]:
    """A plan's content, with the ``NEUTRAL`` values in ``measurement`` as defaults."""
    measurement = content.get("measurement", {})
    if not isinstance(measurement, dict):
        return content
    return {**content, "measurement": {**NEUTRAL[where], **measurement}}
