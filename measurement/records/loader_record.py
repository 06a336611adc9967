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


class FilesRead(BaseModel):
    """Files that were read whole, by several readers side by side."""

    model_config = ConfigDict(extra="forbid")

    files: int
    bytes: int
    seconds: float


class StorageReads(BaseModel):
    """What one host's file system reads of a data set that has a file for each sample, from where they are stored."""

    model_config = ConfigDict(extra="forbid")

    readers: int
    """Threads, as many as the host's ranks have loader workers at most."""
    in_order: FilesRead
    """By name, as far as file systems have an order."""
    at_random: FilesRead


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
    storage: dict[str, StorageReads] = {}
    """By host; empty where samples do not lie in files of their own."""
    turns: list[LoaderTurn]
    """In the order they were measured, rank by rank."""
