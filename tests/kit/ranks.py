"""What the modules of ``tests.distributed.ranks`` share: a rank's place, for every backend over Gloo."""

from __future__ import annotations

from dataclasses import replace

from measurement.world import HOROVOD, World
from runners.launchers import read_own_world


def own_world() -> World:
    """This rank's place. For Horovod over Gloo rank 0 serves the rendezvous under ``spawn``, too, as under ``mpirun``."""
    world = read_own_world()
    return replace(world, gives=world.gives | {HOROVOD})
