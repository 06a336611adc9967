"""What ``torch.distributed`` hands out for an operation over MPI: Work of collectives and of messages, with futures."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from backends.mpi_library import complete, load_mpi

if TYPE_CHECKING:
    from backends.mpi_queue import Queue

POLLS_BEFORE_NAPS = 20_000
"""Tests of a request that a caller's thread makes, about 10 ms of them, before it sleeps in between."""
NAP_S = 50e-6
TICK_S = 1.0
"""How often a thread that waits looks whether the group is stuck inside MPI."""
LOOK = "look for a rank that failed, waits elsewhere or issued another operation"
"""What to do about an operation to which not all have come."""


class Work(dist._Work):
    """One collective, finished or not; ``wait`` raises what went wrong in it."""

    def __init__(
        self, label: str, run: Callable[[], None], *, queue: Queue, outputs: Sequence[torch.Tensor], timeout_s: float | None
    ) -> None:
        super().__init__()
        self.outputs = list(outputs)
        self.timeout_s = timeout_s if timeout_s is not None else queue.timeout_s
        self.error: Exception | None = None
        self.entered_at_s = 0.0
        self._label, self._run, self._queue = label, run, queue
        self._is_finished = False
        self._finished: threading.Condition | None = None
        self._base: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None

    def share(self) -> None:
        """Another thread will run it, and this one or others wait. What is run at once does without the cost of a condition."""
        self._finished = threading.Condition()

    @property
    def name(self) -> str:
        """For messages."""
        return describe(self._label, self.outputs)

    def run(self) -> None:
        """Make the MPI calls; once, behind the gate."""
        run, self._run = self._run, _nothing
        self.entered_at_s = time.monotonic()
        run()

    def finish(self, error: Exception | None) -> None:
        """Called once, by the thread that ran it."""
        self.error, self._run = error, _nothing
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
        """Until it is done.

        Raises:
            DistBackendError: it failed, or ``timeout`` passed, or the group is stuck in this or an earlier operation.
        """
        limit_s = timeout.total_seconds() if not self._is_finished else 0.0
        deadline = time.monotonic() + limit_s if limit_s > 0 else float("inf")
        while not self._wait_finished(min(TICK_S, max(deadline - time.monotonic(), 0))):
            self._queue.raise_if_stuck()
            if time.monotonic() >= deadline:
                raise self._queue.error(self.name, f"not done after the {limit_s:g} s given to wait()")
        if self.error is not None:
            raise self.error
        return True

    def _wait_finished(self, timeout_s: float) -> bool:
        if self._is_finished or self._finished is None:
            return self._is_finished
        with self._finished:
            return self._finished.wait_for(self.is_completed, timeout_s)

    def is_completed(self) -> bool:
        """Whether it is done, well or not."""
        return self._is_finished

    def is_success(self) -> bool:
        """Whether it is done and went well."""
        return self._is_finished and self.error is None

    def exception(self) -> Exception | None:
        """What went wrong, once it is done."""
        return self.error

    def result(self) -> list[torch.Tensor]:
        """The output tensors."""
        return self.outputs

    def synchronize(self) -> None:
        """As ``wait``: data on a GPU is there, too, when an operation is done."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the output tensors; it fails as the operation does."""
        with self._finished or contextlib.nullcontext():
            if self._future is not None:
                return self._future
            base: torch.futures.Future[Any] = torch.futures.Future(devices=cuda_devices(self.outputs))
            # A callback that raises is the one way to an error that C++ (DDP's reducer) sees; set_exception is Python's only.
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


class PointWork(dist._Work):
    """A send or receive under way in MPI; progress is made by whoever waits."""

    def __init__(
        self, label: str, request: Any, *, queue: Queue, outputs: Sequence[torch.Tensor], finish: Callable[[], None], keep: Any
    ) -> None:
        super().__init__()
        self.outputs = list(outputs)
        self._label, self._request, self._queue, self._finish = label, request, queue, finish
        self._memory = keep
        self._status = load_mpi().Status()
        self._is_finished = False
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None
        queue.hold(self)

    @property
    def name(self) -> str:
        """For messages."""
        return describe(self._label, self.outputs)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Until the data has left or arrived.

        Raises:
            DistBackendError: it failed, or neither ``timeout`` nor the group's was enough.
        """
        limit_s = timeout.total_seconds() if timeout > timedelta(0) else self._queue.timeout_s
        if not poll(self, timeout_s=limit_s, polls=POLLS_BEFORE_NAPS):
            self._queue.keep(self)
            raise self._queue.fail(
                self._queue.error(self.name, f"the other side did not come within the timeout of {limit_s:g} s; {LOOK}")
            )
        return True

    def Test(self) -> bool:  # noqa: N802 - polled like an MPI request
        """Let MPI go on, and tell whether it is done."""
        with self._lock:
            if not self._is_finished:
                try:
                    is_done = self._request.Test(self._status)
                except load_mpi().Exception as error:
                    raise self._queue.fail(self._queue.error(self.name, f"MPI says: {error}")) from error
                if is_done:
                    self._finish()
                    self._is_finished = True
                    self._queue.let_go(self)
        return self._is_finished

    def is_completed(self) -> bool:
        """Whether it is done."""
        return self.Test()

    def is_success(self) -> bool:
        """Whether it is done and went well."""
        return self.Test()

    def source_rank(self) -> int:
        """Who sent what was received."""
        return int(self._status.Get_source())

    _source_rank = source_rank

    def result(self) -> list[torch.Tensor]:
        """The tensors."""
        return self.outputs

    def synchronize(self) -> None:
        """As ``wait``."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors. A thread of its own waits for it: the group's may be busy with what this comes before."""
        with self._lock:
            if self._future is None:
                base: torch.futures.Future[Any] = torch.futures.Future(devices=cuda_devices(self.outputs))
                self._future = base.then(lambda _: self.wait() and self.outputs)
                threading.Thread(target=self._fulfil, args=(base,), name=f"future of {self._label}", daemon=True).start()
            return self._future

    def _fulfil(self, base: torch.futures.Future[Any]) -> None:
        with contextlib.suppress(dist.DistBackendError):  # raised again in the callback
            self.wait()
        complete(base)


def poll(request: Any, *, timeout_s: float, polls: int) -> bool:
    """Test a request until it is done: at full speed first, then with short sleeps. False: it was not in time."""
    for _ in range(polls):
        if request.Test():
            return True
    deadline = time.monotonic() + timeout_s
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(NAP_S)
    return True


def cuda_devices(tensors: Sequence[torch.Tensor]) -> list[int | str | torch.device]:
    """The GPUs that a future of these tensors has to know."""
    return [*{tensor.device for tensor in tensors if tensor.is_cuda}]


def describe(label: str, tensors: Sequence[torch.Tensor]) -> str:
    """An operation in words, such as ``all_reduce of float32 [4, 3] and 2 more``."""
    if not tensors:
        return label
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    return f"{label} of {str(tensors[0].dtype).removeprefix('torch.')} {list(tensors[0].shape)}{more}"


def _nothing() -> None:
    return
