"""Measures blocks of steps in a standalone run. The model is built once, as in a user's own run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

from measurement.errors import ParityError
from measurement.plans.plan import Measurement
from measurement.records.record import BlockKind, BlockRecord, LaunchRecord, ranks_of
from runners.protocol.gate_verdict import drift_between
from runners.protocol.messages import BlockCommand, DriftReport
from runners.rank.engine import Engine


def measure(engine: Engine, record: LaunchRecord, measurement: Measurement) -> None:
    """Time the blocks; on every rank the record gets each block of all ranks when it is over. Collective.

    Raises:
        ParityError: on every rank, where a micro-benchmark's result was wrong.
    """
    began = time.monotonic()
    has_local = engine.backend.has_local_steps and not engine.job.speed.sync_batchnorm
    assert measurement.rounds is not None and measurement.block_steps is not None
    local_every = measurement.local_every if has_local and not record.cases else 0
    for case, number, kind in _blocks(_cases(record), measurement.rounds, local_every=local_every):
        started = time.monotonic()
        command = BlockCommand(
            turn=len(record.blocks),
            round=number,
            block=len(record.blocks),
            kind=kind,
            case=case,
            steps=measurement.block_steps,
            warmup_steps=measurement.warmup_steps if number == 0 else 0,
            rebuild=False,
        )
        block = command.record(engine.run_block(command))
        block = block.model_copy(update={"started_s": started - began, "wall_s": time.monotonic() - started})
        blocks = engine.backend.all_gather_object(block, BlockRecord)
        record.blocks.append(BlockRecord.joined(blocks[0], ranks_of(blocks)))
    record.measuring_s = time.monotonic() - began
    wrong = [f"rank {steps.rank}: {steps.wrong}" for block in record.blocks for steps in block.ranks if steps.wrong]
    if wrong:
        raise ParityError("; ".join(wrong))
    require_together(engine.backend.all_gather_object(engine.drift(), DriftReport | None))


def _blocks(cases: Sequence[str | None], number: int, *, local_every: int) -> Iterator[tuple[str | None, int, BlockKind]]:
    """Case, round and kind of every block: rounds are those of a comparison whose other arms are missing."""
    for case, turn in itertools.product(cases, range(number)):
        yield case, turn, "sync"
        if local_every and (turn + 1) % local_every == 0:
            yield case, turn, "local"


def _cases(record: LaunchRecord) -> Sequence[str | None]:
    """The cases of a micro-benchmark that the backend offers; a single None where a workload is trained."""
    return [case.name for case in record.cases if case.name not in record.not_offered] if record.cases else [None]


def require_together(reports: Sequence[DriftReport | None]) -> None:
    """Refuse the timing of ranks that have drifted apart. Takes the reports of all ranks, in their order.

    Raises:
        ParityError: on every rank, with what differs.
    """
    apart = drift_between(reports)
    if apart:
        raise ParityError(apart)
