"""A launcher for tests in which starting is not the point: Horovod's ranks over Gloo, forked from one process like ``spawn``'s.

``horovodrun`` imports PyTorch once by itself, and once in each rank, which is most of what a small comparison takes.
"""

from __future__ import annotations

from dataclasses import replace

from measurement.world import HOROVOD
from runners.launchers.spawn import Spawn
from runners.launchers.torchrun import VARIABLES


class Forked(Spawn):
    """Rank 0 serves Horovod's rendezvous, as it does under ``mpirun`` and ``srun``."""

    rank_variables = (replace(VARIABLES, gives=VARIABLES.gives | {HOROVOD}),)
