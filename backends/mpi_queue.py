"""Runs a group's collectives in order: a queue with a thread, and a barrier before each collective.

A blocking MPI call can neither be interrupted nor time out. So every collective starts with a nonblocking barrier that is polled
until the deadline. If a rank failed, stopped or issued another operation, the barrier does not complete and the caller gets an
exception. After it all ranks are present, and the blocking call, twice as fast as a nonblocking one, only moves data.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Any

import torch.distributed as dist

from backends.mpi_library import abort, close_at_exit, declare_unusable
from backends.mpi_works import POLLS_BEFORE_SLEEP, REMEDY, TICK_S, PointWork, Work, poll

POLLS_IN_BACKGROUND = 50
"""How often the group's own thread tests the barrier before it sleeps in between. It shares a core with the backward pass."""
MAX_UNWATCHED = 64
"""Messages that nobody waits for are tested when there are more than this."""


class Queue:
    """Runs one group's collectives in the order in which they were issued.

    A synchronous operation runs on the caller's thread if nothing else is under way, because a change of threads costs more than
    a small operation. Everything else runs on the group's own thread.
    """

    def __init__(self, comm: Any, *, timeout_s: float) -> None:
        self.comm = comm
        self.timeout_s = timeout_s
        self.failure: Exception | None = None
        self._abandoned: list[Any] = []
        self._works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._count = threading.Lock()
        self._waiting = 0
        self._current: Work | None = None
        self._thread: threading.Thread | None = None
        self._messages: set[PointWork] = set()
        close_at_exit(self)

    def submit(self, work: Work, *, is_async: bool) -> Work:
        """Run an operation, or queue it. It may be done on return.

        Raises:
            DistBackendError: a synchronous operation failed, or the group had failed before.
        """
        if self._thread is None:
            self._start_thread()
        if not is_async and not self._waiting and self._turn.acquire(blocking=False):
            try:
                self._perform(work, polls=POLLS_BEFORE_SLEEP)
            finally:
                self._turn.release()
            work.finish(None)
            return work
        work.share()
        with self._count:
            self._waiting += 1
        self._works.put(work)
        return work

    def _start_thread(self) -> None:
        with self._count:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="mpi4py process group", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                work = self._works.get(timeout=TICK_S)
            except queue.Empty:
                self._abort_if_stuck()
                continue
            if work is None:
                return
            error = self._attempt(work)
            with self._count:
                self._waiting -= 1
            work.finish(error)
            del work, error  # no tensor is kept alive until the next one comes

    def _attempt(self, work: Work) -> Exception | None:
        with self._turn:
            try:
                self._perform(work, polls=POLLS_IN_BACKGROUND)
            except dist.DistBackendError as error:
                return error
        return None

    def _perform(self, work: Work, *, polls: int) -> None:
        if self.failure is not None:
            raise self.error(work.name, f"this group failed before and cannot go on: {self.failure}")
        try:
            gate = self.comm.Ibarrier()
            if not poll(gate, timeout_s=work.timeout_s, polls=polls):
                self.keep(gate)
                raise self.error(work.name, f"not all ranks came to it within its timeout of {work.timeout_s:g} s; {REMEDY}")
            self._current = work
            work.run()
        except dist.DistBackendError as error:
            raise self.fail(error) from None
        except Exception as error:  # the other ranks are in the operation: whatever it was, this group is out of step
            raise self.fail(self.error(work.name, f"{type(error).__name__}: {error}")) from error
        finally:
            self._current = None

    def error(self, name: str, what: str) -> dist.DistBackendError:
        """Make an error that names the operation and this rank."""
        return dist.DistBackendError(f"{name} on rank {self.comm.rank} of {self.comm.size} over MPI: {what}")

    def fail(self, error: Exception) -> Exception:
        """Note that the group is unusable, because its ranks no longer agree on the next operation."""
        self.failure = error
        declare_unusable(str(error))
        return error

    def keep(self, thing: Any) -> None:
        """Keep an abandoned object alive, because MPI may still write to it."""
        self._abandoned.append(thing)

    def raise_if_stuck(self) -> None:
        """Raise, in a waiting thread, if the group's own thread is inside MPI past its deadline."""
        work = self._current
        if work is not None and time.monotonic() > work.entered_at_s + work.timeout_s:
            raise self.fail(self.error(work.name, f"stuck in the MPI call, past its timeout of {work.timeout_s:g} s; {REMEDY}"))

    def _abort_if_stuck(self) -> None:
        """End the job if a caller's thread is stuck inside an MPI call, where no exception reaches it."""
        with contextlib.suppress(dist.DistBackendError):
            self.raise_if_stuck()
            return
        abort(f"{self.failure}")

    def hold(self, message: PointWork) -> None:
        """Keep a message's memory until it is sent or received, even if its Work is dropped."""
        self._messages.add(message)
        if len(self._messages) > MAX_UNWATCHED:
            for other in list(self._messages):
                other.Test()

    def release(self, message: PointWork) -> None:
        """Drop a message that is sent or received."""
        self._messages.discard(message)

    def close(self) -> None:
        """Finish the issued operations, then end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._works.put(None)
            while thread.is_alive() and self.failure is None:
                thread.join(TICK_S)
                with contextlib.suppress(dist.DistBackendError):
                    self.raise_if_stuck()
