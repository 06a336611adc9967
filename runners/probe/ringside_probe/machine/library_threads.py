"""Which threads of a process are its communication library's: those that appear while the library is set up."""

from __future__ import annotations

import functools
import os
from typing import Any

from ..supervision.rank_supervisor import read

NAMES = ("pt_gloo", "pt_nccl", "nccl", "pt_tcpstore", "gloo")
"""Beginnings of names that torch and NCCL give to theirs."""
_found: set[int] = set()


def own_threads() -> list[int]:
    """The ids of this process's threads; empty where there is no /proc."""
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return []


def is_library(thread: int) -> bool:
    """Whether a thread is the library's."""
    return thread in _found or thread_name(thread).startswith(NAMES)


def thread_name(thread: int) -> str:
    """The name of a thread of this process; empty if it has ended."""
    return read(f"/proc/self/task/{thread}/comm").strip()


def watch_horovod(basics: Any) -> None:
    """Look at the threads before and after ``horovod.init()``."""
    basics.HorovodBasics.init = noted(basics.HorovodBasics.init)


def watch_torch(distributed: Any) -> None:
    """Look at the threads before and after ``init_process_group()``."""
    original = distributed.init_process_group
    distributed.init_process_group = noted(original)


def noted(original: Any) -> Any:
    """A function, with the threads that appear in it noted as the library's."""

    @functools.wraps(original)
    def setting_up(*args: Any, **kwargs: Any) -> Any:
        before = set(own_threads())
        try:
            return original(*args, **kwargs)
        finally:
            _found.update(set(own_threads()) - before)

    return setting_up
