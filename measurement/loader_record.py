"""What is written of the loaders alone: io.json, one row per round, number of loader workers and rank; raw, as it was counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from measurement.errors import RecordError

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


class LoadingRecord(BaseModel):
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


def read_loading(path: Path) -> LoadingRecord:
    """A stored ``io.json``.

    Raises:
        RecordError: it is missing, damaged or of another version.
    """
    try:
        return LoadingRecord.model_validate(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        count = f"{error.error_count()} values do not fit" if isinstance(error, ValidationError) else str(error)
        raise RecordError(f"'{path}' is no record of loading: {count}; measure it with python -m runners.io") from error
