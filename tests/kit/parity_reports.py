"""What ranks report in the gate, made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from measurement.agent.ringside_agent.reading.values import sketch
from runners.protocol import ParityReport
from tests.kit.changed import changed

SHAPES = {"weight": (40, 30), "bias": (30,), "dead": (5,)}


def tensors(seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    """A tensor of each shape; the last has nothing but zeros."""
    generator = torch.Generator().manual_seed(seed)
    made = {name: scale * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    return {**made, "dead": torch.zeros(SHAPES["dead"])}


def sketches(values: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """What a rank tells of them."""
    return {name: sketch(value) for name, value in values.items()}


def reports(
    world_size: int = 3, synced: Callable[..., Mapping[str, Tensor]] | None = None, **changes: Any
) -> list[ParityReport]:
    """Reports of ranks that do everything right, but for ``changes`` of rank 1."""
    local = [tensors(100 + rank) for rank in range(world_size)]
    mean = {name: sum(values[name] for values in local) / world_size for name in SHAPES}
    made = [
        ParityReport(
            started=sketches(tensors(1)),
            wanted=sketches(tensors(1 + rank)),
            local=sketches(local[rank]),
            synced=sketches(synced(local, mean, rank) if synced else mean),
            ended=sketches(tensors(2)),
            sizes={name: value.numel() for name, value in mean.items()},
            samples=f"digest of {rank}",
            gradient_scale=1.0,
        )
        for rank in range(world_size)
    ]
    made[1 % world_size] = changed(made[1 % world_size], **changes)
    return made
