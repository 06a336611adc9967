"""What a rank has of its host: cores, threads, and the memory it frees. Shared out alike under every launcher.

The worker of a driver and a run that stands alone call the same functions, so that neither is given more than the other.
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

from measurement.agent.ringside_agent.machine.core_use import own_threads, usable_cores
from measurement.agent.ringside_agent.place import World
from measurement.agent.ringside_agent.supervision.rank_supervisor import state
from measurement.conditions.disturbing_variables import KEEP_FREED_MEMORY
from measurement.probes.fingerprint import cores_near_gpus

BINDING_LAUNCHERS = ("mpirun", "mpiexec", "orte", "prte")
"""Beginnings of the names of processes that bind the ranks they start to cores, and are not bound themselves."""
M_TRIM_THRESHOLD, M_MMAP_MAX, NEVER = -1, -4, -1
"""Numbers of these settings in glibc's malloc.h, for a process that runs already."""
TOPOLOGY, PLACES = Path("/sys/devices/system/cpu"), ("physical_package_id", "core_id")
SET_BY_TORCHRUN = "1"
"""torchrun sets OMP_NUM_THREADS to this in its ranks where it is not set."""


def take_resources(
    world: World, *, threads: int, device: str = "cpu", affinity: str = "spread", freed_memory: str = "return"
) -> None:
    """Give this rank what a plan says of the same names. Before torch computes anything, so that its threads are made with it.

    ``spread`` pins it to its equal share of the host's cores. Those of the host are the cores that its launcher may use: mpirun
    binds ranks to a core each, or a socket, as torchrun and horovodrun do not.
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
    """Equal shares of a host's cores, one for each of its ranks; each has all of them if there are fewer cores than ranks.

    Hardware threads of one core stay together. ``near``: by rank, the cores that it had best; empty where none are.
    """
    left = sorted(cores, key=_place)
    size = len(left) // len(near)
    if not size:
        return [sorted(left)] * len(near)
    shares = []
    for own in near:
        shares.append([core for core in left if core in own][:size])
        left = [core for core in left if core not in shares[-1]]
    rest = iter(left)
    return [sorted([*share, *islice(rest, size - len(share))]) for share in shares]


def _place(core: int) -> tuple[int, int, int]:
    """The socket, the physical core on it, and the number of what Linux calls a core; sockets are all 0 where it does not tell."""
    try:
        socket, physical = (int((TOPOLOGY / f"cpu{core}/topology/{name}").read_text(encoding="ascii")) for name in PLACES)
    except (OSError, ValueError):
        return 0, core, core
    return socket, physical, core


def pin(cores: list[int]) -> None:
    """Let every thread of this process run on these cores only."""
    for thread in own_threads() or [0]:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(thread, cores)


def launcher_cores() -> list[int]:
    """The cores of the process that bound this one; empty where no such process is among its parents."""
    with contextlib.suppress(OSError, psutil.Error):
        for parent in psutil.Process().parents():
            if parent.name().startswith(BINDING_LAUNCHERS):
                return sorted(os.sched_getaffinity(parent.pid))
    return []


def threads_of(world: World, *, asked: int | None, environment: Mapping[str, str]) -> int:
    """How many threads a rank without a driver shall compute with.

    As its user ``asked``; else as OMP_NUM_THREADS says, unless torchrun set it; else an equal share of the host's cores.
    """
    if asked is not None:
        return asked
    given = environment.get("OMP_NUM_THREADS", "").strip()
    if given.isdigit() and int(given) > 0 and not (given == SET_BY_TORCHRUN and "TORCHELASTIC_RUN_ID" in environment):
        return int(given)
    return max(1, len(launcher_cores() or usable_cores()) // world.local_world_size)


def keep_freed_memory() -> None:
    """Have this process and those that it starts keep the memory they free.

    Does nothing where the user says otherwise by these variables, or where malloc is not glibc's.
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
"""A thread that holds CPython's lock runs, or waits for a page of memory."""


@functools.cache
def make_forks_safe() -> None:
    """Have each fork of this process wait for its native threads, under CPython before 3.11.10; nothing elsewhere.

    There, a process that forks while a native thread is about to enter Python may leave its child a lock that nobody releases
    (https://github.com/python/cpython/issues/112275). Gloo's threads enter Python when they drop the last reference to a tensor,
    just after a collective has returned: when the loader of a new epoch forks its workers.
    """
    if sys.version_info < FORKS_SAFELY:
        os.register_at_fork(before=wait_for_native_threads)


def wait_for_native_threads() -> None:
    """Wait until no other thread of this process runs, or ``MAX_WAIT_S`` are over: a library may have one that polls."""
    until = time.monotonic() + MAX_WAIT_S
    own = threading.get_native_id()
    while any(state(one) in RUNNING for one in own_threads() if one != own) and time.monotonic() < until:
        time.sleep(LOOK_EVERY_S)  # without the interpreter's lock, which they may need to finish
