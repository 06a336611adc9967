"""A rank's share of its host: cores, threads, and the memory that it frees.

It is the same under every launcher.

The worker of a driver and a standalone run call the same functions, so that neither gets more than
the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import islice
from pathlib import Path

import psutil

from measurement.agent.ringside_agent.machine import own_threads, usable_cores
from measurement.agent.ringside_agent.place import World
from measurement.agent.ringside_agent.supervision.rank_supervisor import state
from measurement.environment import KEEP_FREED_MEMORY
from measurement.host import cores_near_gpus

BINDING_LAUNCHERS = ("mpirun", "mpiexec", "orte", "prte")
"""Prefixes of the names of processes that bind their ranks to cores, and are not bound
themselves."""
M_TRIM_THRESHOLD, M_MMAP_MAX, NEVER = -1, -4, -1
"""Numbers of these settings in glibc's malloc.h, for a running process."""
TOPOLOGY, PLACES = Path("/sys/devices/system/cpu"), ("physical_package_id", "core_id")
SET_BY_TORCHRUN = "1"
"""torchrun sets OMP_NUM_THREADS to this in its ranks if it is not set."""


def take_resources(
    world: World,
    *,
    threads: int,
    device: str = "cpu",
    affinity: str = "spread",
    freed_memory: str = "return",
) -> None:
    """Apply a plan's settings of the same names to this rank.

    Call it before torch computes, so that its threads inherit them.

    ``spread`` pins the rank to its equal share of the host's cores. Only cores that its launcher
    may use count: mpirun binds ranks to a core or a socket each. torchrun and horovodrun do not.
    """
    cores, ranks = launcher_cores() or usable_cores(), world.local_world_size
    if affinity == "spread":
        pin(share_out(cores, [frozenset()] * ranks)[world.local_rank])
    if freed_memory == "keep":
        keep_freed_memory()
    import torch  # after the affinity: libraries count their threads by it

    if affinity == "spread" and device != "cpu":
        pin(share_out(cores, cores_near_gpus(ranks))[world.local_rank])
    torch.set_num_threads(threads)


def share_out(cores: Iterable[int], near: Sequence[Set[int]]) -> list[list[int]]:
    """Equal shares of a host's cores, one for each of its ranks; each has all of them if there are
    fewer cores than ranks.

    Hardware threads of one core stay together. ``near``: by rank, its preferred cores; may be
    empty.
    """
    left = sorted(cores, key=_place)
    size = len(left) // len(near)
    if not size:
        return [sorted(left)] * len(near)
    shares = []
    for near_cores in near:
        shares.append([core for core in left if core in near_cores][:size])
        left = [core for core in left if core not in shares[-1]]
    rest = iter(left)
    return [sorted([*share, *islice(rest, size - len(share))]) for share in shares]


def _place(core: int) -> tuple[int, int, int]:
    """The socket, the physical core on it, and Linux's core number; 0 and the core number if Linux
    does not report them.
    """
    try:
        socket, physical = (
            int((TOPOLOGY / f"cpu{core}/topology/{name}").read_text(encoding="ascii"))
            for name in PLACES
        )
    except (OSError, ValueError):
        return 0, core, core
    return socket, physical, core


def pin(cores: list[int]) -> None:
    """Restrict every thread of this process to these cores."""
    for thread in own_threads() or [0]:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(thread, cores)


def launcher_cores() -> list[int]:
    """The cores of the process that bound this one; empty if none of its parents did."""
    with contextlib.suppress(OSError, psutil.Error):
        for parent in psutil.Process().parents():
            if parent.name().startswith(BINDING_LAUNCHERS):
                return sorted(os.sched_getaffinity(parent.pid))
    return []


def threads_of(world: World, *, asked: int | None, environment: Mapping[str, str]) -> int:
    """The number of compute threads of a rank without a driver.

    It is the user's (``asked``); else OMP_NUM_THREADS, unless torchrun set it; else an equal share
    of the host's cores.
    """
    if asked is not None:
        return asked
    variable = environment.get("OMP_NUM_THREADS", "").strip()
    if (
        variable.isdigit()
        and int(variable) > 0
        and not (variable == SET_BY_TORCHRUN and "TORCHELASTIC_RUN_ID" in environment)
    ):
        return int(variable)
    return max(1, len(launcher_cores() or usable_cores()) // world.local_world_size)


def keep_freed_memory() -> None:
    """Have this process and those that it starts keep the memory they free.

    Does nothing if the user has set these variables, or if malloc is not glibc's.
    """
    if os.environ.keys() & KEEP_FREED_MEMORY:
        return
    os.environ |= KEEP_FREED_MEMORY
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, NEVER)


FORKS_SAFELY = (3, 11, 10)
MAX_WAIT_S = 0.05
LOOK_EVERY_S = 0.0005
RUNNING = ("R", "D")
"""States of a thread that may hold CPython's lock: it runs, or waits for a page of memory."""


@functools.cache
def make_forks_safe() -> None:
    """Have each fork of this process wait for its native threads under CPython before 3.11.10; do
    nothing under others.

    There, a process that forks while a native thread is about to enter Python may leave its child a
    lock that nobody releases (https://github.com/python/cpython/issues/112275). Gloo's threads
    enter Python when they drop the last reference to a tensor, just after a collective has
    returned: when the loader of a new epoch forks its workers.
    """
    if sys.version_info < FORKS_SAFELY:
        os.register_at_fork(before=wait_for_native_threads)


def wait_for_native_threads() -> None:
    """Wait until no other thread of this process runs, at most ``MAX_WAIT_S``, since a library's
    thread may poll.
    """
    until = time.monotonic() + MAX_WAIT_S
    this_thread = threading.get_native_id()
    while (
        any(state(thread) in RUNNING for thread in own_threads() if thread != this_thread)
        and time.monotonic() < until
    ):
        time.sleep(LOOK_EVERY_S)  # releases the interpreter's lock, which they may need to finish
