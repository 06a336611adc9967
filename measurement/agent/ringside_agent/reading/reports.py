"""What a rank reports of itself, as a ``RankReport``, and the numbers that show whether ranks drift
apart.
"""

from __future__ import annotations

import sys
from typing import Any

from ..machine import host
from ..place import World
from . import libraries
from .script import Script
from .values import hyperparameters, plain, some_elements

DRIFT_ELEMENTS = 4
DRIFT_PARAMETERS = 100


def rank_report(script: Script, place: World) -> dict[str, Any]:
    """This rank, its host, its optimizer, its library and its model."""
    torch: Any = sys.modules["torch"]
    batch = script.yielded.loader.get("loader.batch_size")
    return {
        **host.rank_facts(place),
        "device": str(script.device or "cpu"),
        "seed": torch.initial_seed(),
        "local_batch_size": batch if isinstance(batch, int) else 0,
        "micro_steps": max(1, script.accumulation),
        "optimizer": script.record_safely(optimizer_report, script.optimizers) or {},
        "backend": script.record_safely(libraries.describe, script) or {},
        "model": script.record_safely(script.model_report) or {},
        "environment": host.steering(script.settings),
    }


def optimizer_report(optimizers: list[Any]) -> dict[str, Any]:
    """Class and hyper-parameters of the first optimizer's first group."""
    if not optimizers:
        return {}
    group = optimizers[0].param_groups[0]
    return {
        "class": type(optimizers[0]).__name__,
        **{name: plain(value) for name, value in group.items() if name != "params"},
    }


def drift(script: Script) -> dict[str, Any]:
    """The numbers in the optimizers' groups, and a few elements of the parameters: equal on all
    ranks.
    """
    return script.record_safely(_drift, script) or {"hyperparameters": {}, "parameters": {}}


def _drift(script: Script) -> dict[str, Any]:
    groups = [group for optimizer in script.optimizers for group in optimizer.param_groups]
    named = (
        []
        if script.is_sharded
        else [
            (name, parameter) for name, parameter in script.named_parameters() if parameter.numel()
        ]
    )
    sampled = named[:: max(1, len(named) // DRIFT_PARAMETERS)]
    parameters = {name: some_elements(parameter, DRIFT_ELEMENTS) for name, parameter in sampled}
    return {"hyperparameters": hyperparameters(groups), "parameters": parameters}
