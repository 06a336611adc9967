"""The Work objects that ``torch.distributed`` returns for operations over MPI, with their futures.

Runs a group's collectives in order: a queue with a thread, and a barrier before each collective.

A blocking MPI call can neither be interrupted nor time out. So every collective starts with a
nonblocking barrier that is polled until the deadline. If a rank failed, stopped or issued another
operation, the barrier does not complete and the caller gets an exception. After it all ranks are
present, and the blocking call, twice as fast as a nonblocking one, only moves data.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from backends.mpi.library import abort, close_at_exit, complete, declare_unusable, load_mpi
from measurement.records.record import Span

POLLS_BEFORE_SLEEP = 20_000
"""How often a caller's thread tests a request, for about 10 ms, before it sleeps between tests."""
POLL_SLEEP_S = 50e-6
TICK_S = 1.0
"""How often a waiting thread checks whether the group is stuck inside MPI."""
REMEDY = "look for a rank that failed, waits elsewhere or issued another operation"
"""What to do about an operation that not all ranks have called."""


class Pending(dist._Work):
    """An operation over MPI, with its tensors."""

    def __init__(self, label: str, queue: Queue, outputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.outputs = list(outputs)
        self.label, self._queue = label, queue
        self._is_finished = False
        self._future: torch.futures.Future[Any] | None = None

    @property
    def name(self) -> str:
        """Return the operation in words, such as ``all_reduce of float32 [4, 3] and 2 more``."""
        if not self.outputs:
            return self.label
        first, *others = self.outputs
        more = f" and {len(others)} more" if others else ""
        return (
            f"{self.label} of {str(first.dtype).removeprefix('torch.')} {list(first.shape)}{more}"
        )

    def result(self) -> list[torch.Tensor]:
        return self.outputs

    def synchronize(self) -> None:
        """Wait. When an operation is done, its data is on the GPU too."""
        self.wait()

    def new_future(self) -> torch.futures.Future[Any]:
        """Return a future that knows the GPUs of the tensors."""
        devices = {tensor.device for tensor in self.outputs if tensor.is_cuda}
        return torch.futures.Future(devices=[*devices])


class Work(Pending):
    """One collective. ``wait`` raises the error with which it failed."""

    observers: ClassVar[list[Callable[[Work], None]]] = []
    """Called with each finished collective, while steps are traced."""

    def __init__(
        self,
        label: str,
        run: Callable[[], None],
        *,
        queue: Queue,
        outputs: Sequence[torch.Tensor],
        timeout_s: float,
    ) -> None:
        super().__init__(label, queue, outputs)
        self.timeout_s = timeout_s
        self.error: Exception | None = None
        self.made_at_s, self.entered_at_s = time.monotonic(), 0.0
        self._run = run
        self._finished: threading.Condition | None = None
        self._base: torch.futures.Future[Any] | None = None

    def share(self) -> None:
        """Prepare for being run by another thread while this one waits.

        Work that is run at once needs no condition.
        """
        self._finished = threading.Condition()

    def run(self) -> None:
        """Make the MPI calls. Called once, after the barrier."""
        self.entered_at_s = time.monotonic()
        self._run()

    def finish(self, error: Exception | None) -> None:
        """Mark the operation as ended. Called once, by the thread that ran it."""
        for observe in self.observers:
            observe(self)
        self.error = error
        del self._run  # it holds the input tensors
        if self._finished is None:
            self._is_finished = True
            return
        with self._finished:
            self._is_finished = True
            self._finished.notify_all()
            base = self._base
        if base is not None:
            complete(base)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the operation is done.

        Raises:
            DistBackendError: it failed, ``timeout`` passed, or the group is stuck in this or an
                earlier operation.
        """
        limit_s = timeout.total_seconds()
        deadline = time.monotonic() + limit_s if limit_s > 0 else float("inf")
        while not self._wait_finished(min(TICK_S, max(deadline - time.monotonic(), 0))):
            self._queue.raise_if_stuck()
            if time.monotonic() >= deadline:
                raise self._queue.error(
                    self.name, f"not done after the {limit_s:g} s given to wait()"
                )
        if self.error is not None:
            raise self.error
        return True

    def _wait_finished(self, timeout_s: float) -> bool:
        if self._is_finished or self._finished is None:
            return self._is_finished
        with self._finished:
            return self._finished.wait_for(self.is_completed, timeout_s)

    def is_completed(self) -> bool:
        """Return whether it is done, with or without an error."""
        return self._is_finished

    def is_success(self) -> bool:
        """Return whether it is done without an error."""
        return self._is_finished and self.error is None

    def exception(self) -> Exception | None:
        """Return the error with which it ended, if any."""
        return self.error

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the output tensors. It fails if the operation fails."""
        with self._finished or contextlib.nullcontext():
            if self._future is not None:
                return self._future
            base = self.new_future()
            # DDP's reducer, in C++, only sees an error that a callback raises; set_exception is not
            # visible to it.
            self._future = base.then(self._deliver)
            self._base = base
            is_late = self._is_finished
        if is_late:
            complete(base)
        return self._future

    def _deliver(self, _: Any) -> list[torch.Tensor]:
        if self.error is not None:
            raise self.error
        return self.outputs


@contextmanager
def traced() -> Iterator[list[Span]]:
    """A context whose list gets every collective that ends in it."""
    spans: list[Span] = []
    offset_s = time.time() - time.monotonic()

    def note(work: Work) -> None:
        begin_ns, entered_ns, end_ns = (
            int(1e9 * (at_s + offset_s))
            for at_s in (work.made_at_s, work.entered_at_s, time.monotonic())
        )
        spans.append(
            Span(
                row="exchange",
                name=f"mpi:{work.label}",
                num_bytes=sum(tensor.nbytes for tensor in work.outputs),
                begin_ns=begin_ns,
                length_ns=end_ns - begin_ns,
                entered_ns=entered_ns,
            )
        )

    Work.observers.append(note)
    try:
        yield spans
    finally:
        Work.observers.remove(note)


class PointWork(Pending):
    """A pending send or receive in MPI.

    It makes progress only while a thread waits for it or tests it.
    """

    def __init__(
        self,
        label: str,
        request: Any,
        *,
        queue: Queue,
        outputs: Sequence[torch.Tensor],
        finish: Callable[[], None],
        keep: Any,
    ) -> None:
        super().__init__(label, queue, outputs)
        self._request, self._finish, self._memory = request, finish, keep
        self._status = load_mpi().Status()
        self._lock = threading.Lock()
        queue.hold(self)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the data is sent or received.

        Raises:
            DistBackendError: it failed, or ``timeout`` (else the group's timeout) passed.
        """
        limit_s = timeout.total_seconds() if timeout > timedelta(0) else self._queue.timeout_s
        if not poll(self, timeout_s=limit_s, polls=POLLS_BEFORE_SLEEP):
            self._queue.keep(self)
            raise self._queue.fail(
                self._queue.error(
                    self.name,
                    f"the other rank did not respond within the timeout of {limit_s:g} s; {REMEDY}",
                )
            )
        return True

    def Test(self) -> bool:  # noqa: N802 - polled like an MPI request
        """Let MPI make progress, and return whether the message is done."""
        with self._lock:
            if not self._is_finished:
                try:
                    is_done = self._request.Test(self._status)
                except load_mpi().Exception as error:
                    raise self._queue.fail(
                        self._queue.error(self.name, f"MPI says: {error}")
                    ) from error
                if is_done:
                    self._finish()
                    self._is_finished = True
                    self._queue.release(self)
        return self._is_finished

    is_completed = is_success = Test

    def source_rank(self) -> int:
        """Return the rank that sent the received message."""
        return int(self._status.Get_source())

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors.

        A separate thread waits for the message, because the group's thread may be busy with an
        operation that depends on it.
        """
        with self._lock:
            if self._future is None:
                base = self.new_future()
                self._future = base.then(lambda _: self.wait() and self.outputs)
                threading.Thread(
                    target=self._fulfil, args=(base,), name=f"future of {self.label}", daemon=True
                ).start()
            return self._future

    def _fulfil(self, base: torch.futures.Future[Any]) -> None:
        with contextlib.suppress(dist.DistBackendError):  # raised again in the callback
            self.wait()
        complete(base)


def poll(request: Any, *, timeout_s: float, polls: int) -> bool:
    """Test a request until it is done: first without sleeping, then with short sleeps.

    Return False on timeout.
    """
    for _ in range(polls):
        if request.Test():
            return True
    deadline = time.monotonic() + timeout_s
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SLEEP_S)
    return True


POLLS_IN_BACKGROUND = 50
"""How often the group's own thread tests the barrier before it sleeps between tests. It shares a
core with the backward pass."""
MAX_UNWATCHED = 64
"""When there are more messages than this, all are tested, so that those nobody waits for make
progress."""


class Queue:
    """Runs one group's collectives in the order in which they were issued.

    A synchronous operation runs on the caller's thread if nothing else is pending, because a switch
    of threads costs more than a small operation. Everything else runs on the group's own thread.
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
                self._thread = threading.Thread(
                    target=self._serve, name="mpi4py process group", daemon=True
                )
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
            error = None
            with self._turn:
                try:
                    self._perform(work, polls=POLLS_IN_BACKGROUND)
                except dist.DistBackendError as failure:
                    error = failure
            with self._count:
                self._waiting -= 1
            work.finish(error)
            del work, error  # no tensor is kept alive until the next one comes

    def _perform(self, work: Work, *, polls: int) -> None:
        if self.failure is not None:
            raise self.error(
                work.name, f"this group failed before and cannot go on: {self.failure}"
            )
        try:
            gate = self.comm.Ibarrier()
            if not poll(gate, timeout_s=work.timeout_s, polls=polls):
                self.keep(gate)
                raise self.error(
                    work.name,
                    f"not all ranks reached it within its timeout of {work.timeout_s:g} s;"
                    f" {REMEDY}",
                )
            self._current = work
            work.run()
        except dist.DistBackendError as error:
            raise self.fail(error) from None
        except Exception as error:  # the other ranks are in the operation: the group is out of step
            raise self.fail(self.error(work.name, f"{type(error).__name__}: {error}")) from error
        finally:
            self._current = None

    def error(self, name: str, what: str) -> dist.DistBackendError:
        """Make an error that names the operation and this rank."""
        return dist.DistBackendError(
            f"{name} on rank {self.comm.rank} of {self.comm.size} over MPI: {what}"
        )

    def fail(self, error: Exception) -> Exception:
        """Mark the group as unusable, because its ranks no longer agree on the next operation."""
        self.failure = error
        declare_unusable(str(error))
        return error

    def keep(self, request: Any) -> None:
        """Keep an abandoned object alive, because MPI may still write to it."""
        self._abandoned.append(request)

    def raise_if_stuck(self) -> None:
        """Raise, in a waiting thread, if the group's own thread is inside MPI past its deadline."""
        work = self._current
        if work is not None and time.monotonic() > work.entered_at_s + work.timeout_s:
            raise self.fail(
                self.error(
                    work.name,
                    f"stuck in the MPI call, past its timeout of {work.timeout_s:g} s; {REMEDY}",
                )
            )

    def _abort_if_stuck(self) -> None:
        """End the job if a caller's thread is stuck inside an MPI call, where no exception reaches
        it.
        """
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
