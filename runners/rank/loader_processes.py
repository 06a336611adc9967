"""A rank's loader processes: they start without hanging, and are held while nothing asks them for batches."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from measurement.thread_times import own_threads
from runners.processes.rank_supervisor import state

FORKS_SAFELY = (3, 11, 10)
LONGEST_WAIT_S = 0.05
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
    if sys.version_info < FORKS_SAFELY and sys.platform == "linux":
        os.register_at_fork(before=wait_for_native_threads)


def wait_for_native_threads() -> None:
    """Wait until no other thread of this process runs, or ``LONGEST_WAIT_S`` are over: a library may have one that polls."""
    until = time.monotonic() + LONGEST_WAIT_S
    while _others_run() and time.monotonic() < until:
        time.sleep(LOOK_EVERY_S)  # without the interpreter's lock, which they may need to finish


@contextmanager
def loaders_held() -> Iterator[None]:
    """A context in which the processes that this one started by ``multiprocessing`` are stopped: PyTorch's loaders are.

    A block's untimed rebuild takes as long as many steps. Loaders that went on meanwhile would fill their queue, and a run that
    is limited by its input would begin each block with batches that it did not wait for.
    """
    held = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    try:
        _send(held, signal.SIGSTOP)
        yield
    finally:
        _send(held, signal.SIGCONT)


def _send(pids: list[int], sent: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, sent)


def _others_run() -> bool:
    own = threading.get_native_id()
    return any(state(thread) in RUNNING for thread in own_threads() if thread != own)
