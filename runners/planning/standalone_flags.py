"""The flags of a standalone run in one table; turns them into a plan, and a plan's arm into flags.

A new flag is one line here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field

from measurement.environment import looks_secret
from measurement.errors import PlanError, quoted
from measurement.plans.plan import Plan
from measurement.plans.plan_file import overridden, parse_yaml
from measurement.plans.sections import Arm, Measurement
from measurement.plans.settings import Section, TrainingSettings
from runners.flags import Flag, FlagValues, values_of


class RunOptions(Section):
    """Options of a standalone run besides its plan."""

    backend: str | None = None
    """Use another backend: single, dp, naive, fsdp2, replicate, or your own by module:Class or
    path/to/file.py:Class."""
    settings: tuple[str, ...] = ()
    """Set another key of a plan, such as precision=amp-bf16, threads=2 or training.warmup_epochs=5.
    May be repeated."""
    tensorboard: Path | None = None
    """Write TensorBoard's event files into this folder."""
    timeout: float = Field(default=300.0, ge=1)
    """Seconds to wait for other ranks, to meet and in each exchange."""
    output: Path | None = None
    """Results folder, a new one. [results/BACKEND-WORKLOAD-TIME]"""


MEASURING, TRAINING, LAUNCH = "Measuring", "Training", "Launch"
_measurement, _run = partial(Flag, MEASURING, Measurement), partial(Flag, LAUNCH, RunOptions)
_pairs = partial(Flag, metavar="KEY=VALUE")
WORKLOAD_OPTION = _pairs(
    MEASURING,
    Plan,
    "workload_options",
    ("--workload-option",),
    help="Option of the workload. May be repeated.",
)
SETTINGS = _pairs(MEASURING, RunOptions, "settings", ("--set",))
FLAGS: Sequence[Flag] = (
    Flag(MEASURING, Plan, "workload", default="digits"),
    WORKLOAD_OPTION,
    Flag(MEASURING, Plan, "local_batch_size"),
    _measurement("rounds", ("--blocks",), default=10, help="Blocks to measure."),
    _measurement("block_steps", default=20, help="Timed steps in each block."),
    _measurement("warmup_steps", default=10, help="Untimed steps before the first block."),
    SETTINGS,
    Flag(MEASURING, RunOptions, "output", ("-o", "--output")),
    Flag(
        TRAINING,
        TrainingSettings,
        "epochs",
        default=None,
        help="Train for so many epochs, instead of measuring blocks.",
    ),
    Flag(TRAINING, RunOptions, "tensorboard"),
    _run("backend"),
    _pairs(LAUNCH, Arm, "options", ("--option",), help="Option of the backend. May be repeated."),
    Flag(LAUNCH, Arm, "transport"),
    _run("timeout"),
)
SETTABLE = (
    "seed",
    "threads",
    "affinity",
    "freed_memory",
    "device",
    "micro_steps",
    "precision",
    "max_gradient_norm",
    "speed.*",
    "training.*",
    "measurement.local_every",
)
"""Keys of a plan that ``--set`` may name. The others come from the launcher or other flags, or do
not apply."""
MODULES = {"ddp": "runners.ddp", "horovod": "runners.hvd"}
"""The module that ranks run, by backend; the first serves all others, which take ``--backend``."""
MASKED = "***"
FIXED = {"mode": "separate", "launches": 1, "control": False}
"""Keys of a plan's ``measurement`` that are the same in every standalone run."""


def settings(texts: Sequence[str] | None, flag: str) -> dict[str, Any]:
    """Return ``key=value`` pairs, with values read as YAML."""
    pairs = [text.partition("=") for text in texts or []]
    for key, equals, value in pairs:
        if not key or not equals:
            raise PlanError(f"{flag} {key + equals + value!r} is not of the form key=value")
    return {key: parse_yaml(value, source=f"{flag} {key}") for key, _, value in pairs}


def plan_content(flags: FlagValues) -> dict[str, Any]:
    """Return the plan content that the flags ask for.

    Raises:
        PlanError: a value that is not accepted, or flags that do not go together.
    """
    set_values = [str(setting) for setting in flags.get(SETTINGS, ())]
    for setting in set_values:
        key = setting.partition("=")[0].strip()
        if not any(fnmatch(key, pattern) for pattern in SETTABLE):
            raise PlanError(
                f"--set {quoted(key)} is not for a standalone run; it sets {', '.join(SETTABLE)}"
            )
    content = {
        **values_of(flags, Plan),
        "workload_options": settings(flags.get(WORKLOAD_OPTION), WORKLOAD_OPTION.name),
        "measurement": values_of(flags, Measurement) | FIXED,
        "training": values_of(flags, TrainingSettings),
    }
    training = overridden(content, set_values)["training"]
    if "epochs" in training:
        return content | {"measurement": content["measurement"] | {"local_every": 0}}
    if training:
        flag = f"--set training.{next(iter(training))}"
        raise PlanError(
            f"{flag} is for training to the end; say --epochs N with it, or leave it out to measure"
            " throughput"
        )
    return content | {"training": None}


def flags_for(plan: Plan, arm: Arm) -> list[str]:
    """Return the flags that start a rank of an arm.

    Defaults are left out, and what looks secret is masked.

    ``plan``: as the arm runs it (``runners.planning.arms.plan_of_arm``).
    """
    options = RunOptions(
        backend=None if arm.backend in MODULES else arm.backend,
        settings=tuple(f"{key}={_as_yaml(value)}" for key, value in _settable_values(plan)),
    )
    sections = (plan, plan.measurement, plan.training, arm, options)
    values: dict[type[BaseModel], BaseModel] = {
        type(section): section for section in sections if section is not None
    }
    words: list[str] = []
    for flag in (flag for flag in FLAGS if flag.model in values):
        value = getattr(values[flag.model], flag.field)
        if value in (
            None,
            flag.default,
            flag.model.model_fields[flag.field].get_default(call_default_factory=True),
        ):
            continue
        items = list(value) if isinstance(value, tuple) else [value]
        if isinstance(value, Mapping):
            items = [
                f"{key}={MASKED if looks_secret(key) else _as_yaml(item)}"
                for key, item in value.items()
            ]
        words += [word for item in items for word in (flag.name, str(item))]
    return words


def _settable_values(plan: Plan) -> Iterator[tuple[str, Any]]:
    """Keys of a plan that ``--set`` may name, with the values that are not defaults."""
    values = plan.model_dump(exclude_defaults=True)
    for section in ("speed", "training", "measurement"):
        inner = values.pop(section, None) or {}
        values |= {f"{section}.{key}": value for key, value in inner.items()}
    ignored = "measurement.*" if plan.training else ""
    for key, value in values.items():
        is_settable = any(fnmatch(key, pattern) for pattern in SETTABLE)
        if is_settable and key != "training.epochs" and not fnmatch(key, ignored):
            yield key, value


def _as_yaml(value: Any) -> str:
    """A value as ``settings`` reads it, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=1 << 20, allow_unicode=True)
    return text.removesuffix("...\n").strip()
