"""Where the ranks of a run without a driver meet."""

from __future__ import annotations

import os

from torch.distributed import HashStore

from backends import backend_class
from backends.base import Store
from backends.mpi_library import load_mpi
from backends.mpi_rendezvous import open_store
from backends.torch_distributed import CONNECT_TIMEOUT
from measurement.needs import MPI, RENDEZVOUS
from measurement.world import World
from runners.protocol.messages import Job


def rendezvous_store(job: Job, world: World) -> Store | None:
    """Open a store for ranks to meet if no address is set: rank 0 tells the others its own over MPI. Collective.

    Returns:
        None where MASTER_ADDR says where, or the backend meets in a way of its own.
    """
    wants_store = RENDEZVOUS in backend_class(job.backend).needs(job.transport) or job.transport == "gloo"
    if not wants_store or "MASTER_ADDR" in os.environ:
        return None
    if world.world_size == 1:
        return HashStore()
    return open_store(load_mpi().COMM_WORLD, timeout=CONNECT_TIMEOUT) if MPI in world.gives else None
