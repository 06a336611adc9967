"""Measures blocks of steps without a driver. The model is built once, as in a user's own run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from measurement.errors import ParityError
from measurement.record import BlockRecord, LaunchRecord
from runners.protocol.messages import BlockCommand
from runners.rank.engine import Engine


@dataclass(frozen=True, kw_only=True)
class StandaloneSettings:
    """How long to measure."""

    warmup_steps: int
    blocks: int
    block_steps: int
    parity_steps: int


def measure(engine: Engine, record: LaunchRecord, settings: StandaloneSettings) -> None:
    """Time the blocks; on every rank the record gets those of all ranks. Collective.

    Raises:
        ParityError: on every rank, where a micro-benchmark's result was wrong.
    """
    began = time.monotonic()
    mine = []
    for turn, (case, number) in enumerate(itertools.product(_cases(record), range(settings.blocks))):
        started = time.monotonic()
        command = BlockCommand(
            turn=turn,
            round=number,
            block=turn,
            case=case,
            steps=settings.block_steps,
            warmup_steps=settings.warmup_steps if number == 0 else 0,
            rebuild=number == 0,
        )
        block = engine.run_block(command)
        mine.append(block.model_copy(update={"started_s": started - began, "wall_s": time.monotonic() - started}))
    record.measuring_s = time.monotonic() - began
    everyone = engine.backend.all_gather_object(mine)
    record.blocks = [BlockRecord.joined(blocks) for blocks in zip(*everyone, strict=True)]
    wrong = [f"rank {steps.rank}: {steps.wrong}" for block in record.blocks for steps in block.ranks if steps.wrong]
    if wrong:
        raise ParityError("; ".join(wrong))


def _cases(record: LaunchRecord) -> Sequence[str | None]:
    """The cases of a micro-benchmark that the backend offers; a single None where a workload is trained."""
    return [case.name for case in record.cases if case.name not in record.not_offered] if record.cases else [None]
