"""``init_method="mpi4py://"``: takes rank, world size and the store's address from MPI, so no variables need to be set."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import psutil
import torch.distributed as dist

from backends.mpi_library import load_mpi
from measurement.errors import LaunchError, WorldSizeMismatchError

REACH_TIMEOUT_S = 3.0


def rendezvous(url: str, *, timeout: timedelta = timedelta(minutes=30), **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """Yield store, rank and world size to ``torch.distributed.rendezvous``. Collective over all ranks of MPI.

    Raises:
        WorldSizeMismatchError: ``rank`` or ``world_size`` were given and are not MPI's.
        LaunchError: no address of rank 0 can be reached by all ranks.
    """
    comm = load_mpi().COMM_WORLD
    given = dict(parse_qsl(urlsplit(url).query))
    check_rank(int(given.get("rank", comm.rank)), int(given.get("world_size", comm.size)))
    yield open_store(comm, timeout=timeout), comm.rank, comm.size


def check_rank(rank: int, world_size: int) -> None:
    """Refuse a rank or world size that is not MPI's, for example if each process is an MPI world of its own.

    Raises:
        WorldSizeMismatchError: with both views.
    """
    comm = load_mpi().COMM_WORLD
    if (rank, world_size) != (comm.rank, comm.size):
        raise WorldSizeMismatchError(
            f"asked for rank {rank} of {world_size}, and MPI counts rank {comm.rank} of {comm.size}; "
            "start the processes with mpirun, horovodrun --mpi or srun (with the MPI library that mpi4py loads), once in all"
        )


def open_store(comm: Any, *, timeout: timedelta) -> dist.Store:
    """Open a TCPStore, which rank 0 serves at a free port. Collective."""
    served = None
    if comm.rank == 0:
        served = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timeout)
    port = comm.bcast(served.port if served is not None else None)
    host = _reachable_address(comm, port)
    return served or dist.TCPStore(host, port, is_master=False, timeout=timeout)


def _reachable_address(comm: Any, port: int) -> str:
    """Find an address of rank 0 that every rank can connect to: loopback if all ranks are on one host. Collective."""
    on_this_host = comm.Split_type(load_mpi().COMM_TYPE_SHARED)
    is_one_host, _ = on_this_host.size == comm.size, on_this_host.Free()
    if is_one_host:
        return "127.0.0.1"
    addresses: list[str] = comm.bcast(_own_addresses() if comm.rank == 0 else None)
    reached = [_is_reachable(address, port) for address in addresses]
    answers: list[list[bool]] = comm.allgather(reached)
    for place, address in enumerate(addresses):
        if all(of_rank[place] for of_rank in answers):
            return address
    raise LaunchError(
        f"no address of rank 0's host can be reached by all {comm.size} ranks at port {port} (tried {', '.join(addresses)}); "
        "open the hosts' firewalls to each other, or pass init_process_group a store of your own"
    )


def _own_addresses() -> list[str]:
    """Return this host's name and addresses, without loopback."""
    found = [socket.gethostname()]
    for of_interface in psutil.net_if_addrs().values():
        found += [entry.address for entry in of_interface if entry.family in (socket.AF_INET, socket.AF_INET6)]
    return [address for address in found if not address.startswith(("127.", "::1", "fe80:"))]


def _is_reachable(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=REACH_TIMEOUT_S):
        return True
    return False
