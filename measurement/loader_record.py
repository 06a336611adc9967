"""What is written of the loaders alone: io.json, one row per round, number of loader workers and rank; raw, as it was counted."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION: Literal[1] = 1


class LoaderTurn(BaseModel):
    """What one rank loaded in one turn, on its own clock; all ranks have their turn of a round at the same time."""

    model_config = ConfigDict(extra="forbid")

    round: int
    rank: int
    host: str
    workers: int
    """Loader processes of this rank."""
    samples: int
    seconds: float


class LoaderRecord(BaseModel):
    """The loaders of one workload on one set of ranks."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1] = SCHEMA_VERSION
    created_at: str
    workload: str
    workload_options: dict[str, Any]
    """As asked for, without ``loader_workers``, which every turn has its own of."""
    sample_unit: str
    local_batch_size: int
    launcher: str
    world_size: int
    device: str
    """Where batches end: ``cpu`` or ``cuda``, which pins them in memory first."""
    cores: dict[str, int]
    """That ranks may use, by host."""
    turns: list[LoaderTurn]
    """In the order they were measured, rank by rank."""
