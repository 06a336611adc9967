"""The tables beside a record, in ``pandas``: raw steps, losses, and what the hosts did
meanwhile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow.parquet import ParquetFile, ParquetWriter

from measurement.records.block import PHASES, BlockRecord
from measurement.records.record import LaunchRecord

STEP_COLUMNS = {
    "rank": "int32",
    "turn": "int32",
    "round": "int32",
    "block": "int32",
    "kind": "string",
    "case": "string",
    "step": "int32",
    "samples": "int64",
    "data_wait_s": "float64",
    "forward_s": "float64",
    "backward_s": "float64",
    "optimizer_s": "float64",
    "exchange_s": "float64",
    "step_s": "float64",
}
"""steps.parquet: one row per rank and timed step, see ``BlockRecord.columns``. ``turn`` counts the
blocks of all arms in the order they ran in this launch, ``block`` those of this arm, ``round`` the
rounds. ``kind`` is ``sync`` or ``local``. ``samples`` are this rank's. Times are seconds on the
rank's own clock; the phases sum to ``step_s``. ``exchange_s``: see ``PHASES``; older files have
none.

``case`` is null unless the workload is a micro-benchmark. There it names the case, and a step is
the block's ``repetitions`` of its operation. All of the time is in ``backward_s``, where training
exchanges gradients. ``samples`` are the bytes of the messages, counted once for all ranks: on rank
0."""

LOSS_COLUMNS = {
    "rank": "int32",
    "start": "int32",
    "step": "int64",
    "samples": "int64",
    "loss": "float64",
}
"""losses.parquet: one row per rank and step of a script, timed or not. ``step`` counts from 0 at
the script's start, and ``start`` how often the script was started before in this launch;
``samples`` are this rank's in the step."""

HOST_COLUMNS = {
    "turn": "Int32",
    "host": "string",
    "measure": "string",
    "of": "string",
    "value": "float64",
}
"""hosts.parquet: what every host of the arm did during each of its blocks, untimed steps included,
one row per value (``HostUse.rows``). ``of``: which interface, package or GPU; empty of the host as
a whole. Beside these one row per core: ``core_busy_s`` of the core that ``of`` names, over all
blocks of the launch; ``turn`` is null there."""
HOST_USE_TYPES: dict[str, Any] = {"launch": "int64", "arm": "string", **HOST_COLUMNS}
ROWS_AT_ONCE = 1 << 20
MIN_STEP_S, MAX_STEP_S = 1e-9, 3e9
"""Limits of a step's time; beyond them, ratios are not finite."""


def read_steps(path: Path, record: LaunchRecord) -> Iterator[pd.DataFrame]:
    """Yield a record's raw steps (columns: ``STEP_COLUMNS``) in parts of at most ``ROWS_AT_ONCE``
    rows.

    Raises:
        OSError, ValueError, KeyError, TypeError, ArithmeticError, NotImplementedError: they cannot
            be read, or belong to another record.
    """
    for batch in ParquetFile(path).iter_batches(batch_size=ROWS_AT_ONCE):
        raw = batch.to_pandas()
        raw = raw.assign(exchange_s=raw.get("exchange_s", 0.0))
        table = with_record(record, raw[list(STEP_COLUMNS)].astype(STEP_COLUMNS))
        require_steps_of(record, table)
        yield table


def empty(types: Mapping[str, Any]) -> pd.DataFrame:
    """A table of these columns without rows."""
    return pd.DataFrame(columns=list(types)).astype(types)


def joined(parts: Iterable[pd.DataFrame], types: Mapping[str, Any]) -> pd.DataFrame:
    """All parts in one table of these columns, which has no rows where there are none."""
    tables = list(parts)
    return (
        pd.concat(tables, ignore_index=True)[list(types)].astype(types) if tables else empty(types)
    )


def read_losses(path: Path) -> pd.DataFrame:
    """The losses of a script's steps: columns ``LOSS_COLUMNS``.

    Raises:
        OSError, ValueError, KeyError: the table cannot be read.
    """
    return pd.read_parquet(path)[list(LOSS_COLUMNS)].astype(LOSS_COLUMNS)


def read_host_use(path: Path, record: LaunchRecord) -> pd.DataFrame:
    """What the hosts did during a record's blocks: columns ``HOST_USE_TYPES``.

    Raises:
        OSError, ValueError, KeyError: the table cannot be read.
    """
    use = with_record(record, pd.read_parquet(path)[list(HOST_COLUMNS)])
    return use.assign(launch=record.launch, arm=record.arm)


def steps_of(blocks: Iterable[BlockRecord]) -> pd.DataFrame:
    """The raw steps of blocks that still hold them (columns: ``STEP_COLUMNS``)."""
    with_steps = [block for block in blocks if len(block.columns.rank)]
    if not with_steps:
        return empty(STEP_COLUMNS)
    columns = [block.columns for block in with_steps]
    rows = [len(steps.rank) for steps in columns]
    phases = np.concatenate([steps.phases_s for steps in columns])
    table: dict[str, Any] = {
        name: np.concatenate([getattr(steps, name) for steps in columns])
        for name in ("rank", "step", "samples")
    }
    for name in ("turn", "round", "block"):
        table[name] = np.repeat([getattr(block, name) for block in with_steps], rows)
    for name in ("kind", "case"):
        table[name] = pd.array(
            [getattr(block, name) for block in with_steps], dtype="string"
        ).repeat(rows)
    for column, phase in enumerate(PHASES):
        table[f"{phase}_s"] = phases[:, column]
    table["step_s"] = phases.sum(axis=1)
    return pd.DataFrame(table)[list(STEP_COLUMNS)].astype(STEP_COLUMNS)


def parquet_of_steps(record: LaunchRecord) -> bytes:
    """The content of a Parquet file with a record's steps, made in parts of about ``ROWS_AT_ONCE``
    rows.
    """
    buffer = BytesIO()
    with ParquetWriter(
        buffer, pa.Schema.from_pandas(empty(STEP_COLUMNS), preserve_index=False)
    ) as writer:
        part, rows = list[BlockRecord](), 0
        for block in record.blocks:
            part.append(block)
            rows += len(block.columns.rank)
            if rows >= ROWS_AT_ONCE or block is record.blocks[-1]:
                writer.write_table(pa.Table.from_pandas(steps_of(part), preserve_index=False))
                part, rows = [], 0
    return buffer.getvalue()


def losses_of(record: LaunchRecord) -> pd.DataFrame:
    """The losses of a script's steps (columns: ``LOSS_COLUMNS``), those of the compared first steps
    included.
    """
    rows = [
        (report.rank, 0, number, step.samples or 0, math.nan if step.loss is None else step.loss)
        for report in record.scripts
        for number, step in enumerate(report.steps)
    ]
    for rank in (rank for block in record.blocks for rank in block.ranks):
        steps = zip(
            itertools.count(rank.first_step or 0), rank.loss_samples, rank.losses, strict=False
        )
        rows += [(rank.rank, rank.start, step, samples, loss) for step, samples, loss in steps]
    return pd.DataFrame(rows, columns=list(LOSS_COLUMNS)).astype(LOSS_COLUMNS)


def host_use_of(record: LaunchRecord) -> pd.DataFrame:
    """What the hosts did during a record's blocks, where these still have it (columns:
    ``HOST_COLUMNS``).
    """
    rows: list[tuple[int | None, str, str, str, float]] = []
    cores: dict[tuple[str, int], float] = {}
    for block in record.blocks:
        for host, use in block.hosts.items():
            rows += [(block.turn, host, measure, of, value) for measure, of, value in use.rows()]
            for core, seconds in enumerate(use.core_busy_s):
                cores[host, core] = cores.get((host, core), 0.0) + seconds
    rows += [
        (None, host, "core_busy_s", str(core), seconds) for (host, core), seconds in cores.items()
    ]
    return pd.DataFrame(rows, columns=list(HOST_COLUMNS)).astype(HOST_COLUMNS)


def with_record(record: LaunchRecord, table: pd.DataFrame) -> pd.DataFrame:
    """Leave out rows of blocks that an incomplete record lacks: the driver was killed between two
    files, or still writes.
    """
    if record.complete:
        return table
    return table[table["turn"].isna() | table["turn"].isin({block.turn for block in record.blocks})]


def require_steps_of(record: LaunchRecord, table: pd.DataFrame) -> None:
    """Raise a ``ValueError`` where steps are not those of a record's blocks, or have impossible
    numbers.

    Checks the first row of each block, and the numbers of all rows. ``table``: columns
    ``STEP_COLUMNS``.
    """
    blocks = {
        (block.turn, block.round, block.block, block.kind, block.case) for block in record.blocks
    }
    first = table.drop_duplicates("turn")[["turn", "round", "block", "kind", "case"]]
    known = first.astype(object).where(first.notna(), None)
    unknown = {*known.itertuples(index=False, name=None)} - blocks
    if unknown:
        raise ValueError(
            f"it has steps of {len(unknown)} blocks that the record beside it does not have"
        )
    numbers = table.select_dtypes("number").to_numpy(dtype="float64")
    is_possible = (np.isfinite(numbers) & (numbers >= 0)).all()
    if not (is_possible and table["step_s"].between(MIN_STEP_S, MAX_STEP_S).all()):
        raise ValueError("it has impossible times or numbers")
