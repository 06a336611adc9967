"""Which values of a plan count for its digest, by which a results folder is known to be of the same plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

NEVER_DIGESTED = {"launches", "until_decided", "max_minutes", "rehearsal", "reports", "question"}
"""How long is measured and what is written may change when a comparison is resumed."""
FIRST_FIELDS: Mapping[str, frozenset[str]] = {
    "Plan": frozenset(
        [
            "name",
            "workload",
            "workload_options",
            "local_batch_size",
            "micro_steps",
            "world_size",
            "hosts",
            "network_interface",
            "driver_address",
            "host_differences",
            "seed",
            "device",
            "threads",
            "affinity",
            "environment",
            "baseline",
            "arms",
            "measurement",
            "points",
            "scaling",
        ]
    ),
    "Arm": frozenset(["backend", "transport", "launcher", "options", "environment"]),
    "Measurement": frozenset(
        [
            "mode",
            "seconds_per_launch",
            "rounds",
            "block_s",
            "block_steps",
            "warmup_steps",
            "local_every",
            "parity_steps",
            "control",
            "freeze",
            "noise_threshold",
            "confidence",
            "start_timeout_s",
            "block_timeout_s",
        ]
    ),
    "Point": frozenset(["world_size", "hosts", "local_batch_size", "link_rate"]),
    "TrainingSettings": frozenset(
        [
            "epochs",
            "target_accuracy",
            "stop_at_target",
            "learning_rate_scaling",
            "warmup_epochs",
            "decay_epochs",
            "decay_factor",
            "accuracy_margin",
            "epoch_timeout_s",
        ]
    ),
}
"""By section. Nothing is ever added here."""


def counting_values(value: Any) -> Any:
    """The values of a section that count, in plain JSON, and of all sections inside it."""
    if isinstance(value, dict):
        return {key: counting_values(part) for key, part in value.items()}
    if not isinstance(value, BaseModel):
        return value
    always = FIRST_FIELDS.get(type(value).__name__, frozenset())
    counting = {
        name: getattr(value, name)
        for name, field in type(value).model_fields.items()
        if name not in NEVER_DIGESTED and (name in always or getattr(value, name) != field.get_default(call_default_factory=True))
    }
    return {name: counting_values(part) for name, part in counting.items()}
