"""Flags of a run that trains to the end, held against each other and against the workload before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measurement.errors import PlanError
from measurement.plan_file import checked
from measurement.training import Training
from workloads import workload_class

SHORTHANDS = {"--data-dir": "data_dir", "--download": "download", "--pretrained": "pretrained", "--workers": "loader_workers"}
"""Flags that stand for an option of the workload."""


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Where a training is kept, and how often."""

    path: Path
    every_steps: int | None
    """Besides at the end of each epoch."""
    resume: bool


def read_training(epochs: int | None, given: Mapping[str, Any]) -> Training | None:
    """What ``--epochs`` and the flags that need it ask for; None: throughput is measured.

    Args:
        epochs: None where the flag was not given.
        given: flags by name, None where they were not given: fields of ``Training`` and of ``Keeping``.

    Raises:
        PlanError: a flag without ``--epochs``, or a value that is not accepted.
    """
    present = {flag: value for flag, value in given.items() if value is not None and value is not False}
    if epochs is None:
        for flag in present:
            raise PlanError(f"{flag} is for training to the end; say --epochs N with it, or leave it out to measure throughput")
        return None
    fields = {name: value for flag, value in present.items() if (name := _name(flag)) in Training.model_fields}
    stop = {"stop_at_target": "target_accuracy" in fields}
    return checked(Training, {"epochs": epochs, **fields, **stop}, source="training")


def read_keeping(path: Path | None, *, every_steps: int | None, resume: bool) -> Keeping | None:
    """What ``--checkpoint`` and the flags that need it ask for.

    Raises:
        PlanError: one of those without it.
    """
    if path is not None:
        return Keeping(path=path, every_steps=every_steps, resume=resume)
    for flag, value in (("--checkpoint-steps", every_steps is not None), ("--resume", resume)):
        if value:
            raise PlanError(f"{flag} needs --checkpoint FILE, which says where the training is kept")
    return None


def workload_options(workload: str, options: Mapping[str, Any], shorthands: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a workload, those among them that were given by a flag of their own.

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
