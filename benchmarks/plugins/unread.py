"""DDP in whose ranks the kernel's counters are read around one block of every two, and around the
other not.

``path/to/unread.py:SometimesReadDDP``. Which of the two, the run's id and the pair's number decide,
alike on all ranks.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from torch import nn

import runners.rank.trainer
from backends.base import BuildOptimizer, Prepared
from backends.ddp import DDP
from benchmarks.plugins.slow import RUN_ID
from measurement.agent.ringside_agent import machine


def coin(run: str, number: int) -> bool:
    """Whether number ``number`` of a run is read: of numbers 2n and 2n + 1 always one."""
    drawn = hashlib.sha256(f"{run} {number // 2}".encode()).digest()[0] % 2
    return bool((drawn + number) % 2)


class SometimesReadDDP(DDP):
    """Its wrapper is built before each block; from then on the counters are read, or not."""

    _built = 0

    def prepare(self, model: nn.Module, build_optimizer: BuildOptimizer) -> Prepared:
        """Prepare as DDP does. Collective."""
        is_read = coin(os.environ.get(RUN_ID, ""), self._built)
        self._built += 1
        runners.rank.trainer.read_threads = READ_THREADS if is_read else _nothing
        machine.read_core_use = READ_CORES if is_read else _nothing
        return super().prepare(model, build_optimizer)


READ_THREADS, READ_CORES = machine.read_threads, machine.read_core_use


def _nothing(*_: Any, **__: Any) -> None:
    """As where the kernel does not tell."""
