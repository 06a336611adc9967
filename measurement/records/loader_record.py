"""What is written of the loaders alone: io.json, one row per round, number of loader workers and rank; raw, as it was counted."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from measurement.records.record import Written

SCHEMA_VERSION: Literal[1] = 1


class LoaderTurn(Written):
    """What one rank loaded in one turn, on its own clock; all ranks have their turn of a round at the same time."""

    round: int
    rank: int
    host: str
    workers: int
    """Loader processes of this rank."""
    samples: int
    seconds: float


class FilesRead(Written):
    """Files that were read whole, by several readers side by side."""

    files: int
    bytes: int
    seconds: float


class StorageReads(Written):
    """What one host's file system reads of a data set that has a file for each sample, from where they are stored."""

    readers: int
    """Threads, as many as the host's ranks have loader workers at most."""
    in_order: FilesRead
    """By name, as far as file systems have an order."""
    at_random: FilesRead


class LoaderRecord(Written):
    """The loaders of one workload on one set of ranks."""

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
    storage: dict[str, StorageReads] = Field(default_factory=dict)
    """By host; empty where samples do not lie in files of their own."""
    turns: list[LoaderTurn]
    """In the order they were measured, rank by rank."""
