"""Blocks of steps measured without a driver: the model is built once, as in a user's own run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from measurement.errors import ParityError
from measurement.record import LaunchRecord
from runners.arm_launch import block_record, block_rows
from runners.engine import Engine
from runners.job import Command
from runners.rounds import TRAINING


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How long to measure."""

    warmup_steps: int
    blocks: int
    block_steps: int
    parity_steps: int


def measure(engine: Engine, record: LaunchRecord, lengths: Lengths) -> list[dict[str, Any]]:
    """All ranks' raw steps, on every rank; the record gets the blocks. Collective."""
    began = time.monotonic()
    mine = []
    for number, (case, block) in enumerate(itertools.product(_cases(record), range(lengths.blocks))):
        started = time.monotonic()
        command = Command(
            do="block",
            case=case,
            steps=lengths.block_steps,
            warmup_steps=lengths.warmup_steps if block == 0 else 0,
            rebuild=block == 0,
        )
        report = engine.run_block(command)
        done = block_record(
            command,
            turn=number,
            number=block,
            block=number,
            started_s=started - began,
            wall_s=time.monotonic() - started,
            untimed_s=report.untimed_s,
        )
        record.blocks.append(done)
        mine.append(report)
    record.measuring_s = time.monotonic() - began
    everyone = engine.backend.all_gather_object(mine)
    wrong = [f"rank {report.rank}: {report.wrong}" for reports in everyone for report in reports if report.wrong]
    if wrong:
        raise ParityError("; ".join(wrong))
    return [
        row
        for reports in everyone
        for block, report in zip(record.blocks, reports, strict=True)
        for row in block_rows(block, report)
    ]


def _cases(record: LaunchRecord) -> Sequence[str]:
    """Of a micro-benchmark, those that the backend offers; training has one without a name."""
    return [case.name for case in record.cases if case.name not in record.not_offered] if record.cases else TRAINING
