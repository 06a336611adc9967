"""Where the ranks of a run without a driver meet."""

from __future__ import annotations

import os

from torch.distributed import HashStore

from backends.base import Store
from backends.mpi_library import load_mpi
from backends.mpi_rendezvous import open_store
from backends.torch_distributed import CONNECT_TIMEOUT
from measurement.errors import PlanError
from measurement.world import World
from runners.job import Job

MPI_FAMILIES = ("openmpi", "mpich")
"""Of rank variables, see ``runners.rank_environment``: their launchers give no address to meet at."""


def meeting_store(job: Job, world: World) -> Store | None:
    """Where ranks meet when no launcher says: MPI's launchers set no address, so rank 0 tells its own over MPI."""
    needs_store = job.backend == "ddp" or (job.transport == "gloo" and world.launcher in MPI_FAMILIES)
    if not needs_store or "MASTER_ADDR" in os.environ:
        return None
    if world.world_size == 1:
        return HashStore()
    if world.launcher not in MPI_FAMILIES:
        raise PlanError(
            f"MASTER_ADDR is not set and launcher '{world.launcher}' gives DDP's ranks no address to meet at; "
            "start with torchrun or mpirun, or set MASTER_ADDR and MASTER_PORT"
        )
    return open_store(load_mpi().COMM_WORLD, timeout=CONNECT_TIMEOUT)
