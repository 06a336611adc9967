"""Holds a rank's loader processes while nothing asks them for batches, so that they fill no queue at the cost of untimed work."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


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
