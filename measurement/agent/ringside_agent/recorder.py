"""The hot path: what the hooks record in each step.

Nothing here waits for a device, sends or formats anything.

An iteration ends where the outermost ``step()`` of the first optimizer returns. Its time is that
since the last one ended, in five phases that sum to it: waiting for data, backward, optimizer,
waiting for exchange, and all else: forward. A closure that ``step()`` calls counts as forward and
backward, up to the end of its last backward pass. A wait for exchange may be within any other
phase. That phase's clock (``perf_counter_ns() - exchange``) stops meanwhile.
"""

from __future__ import annotations

import sys
import weakref
from time import perf_counter_ns
from typing import Any, Callable, NamedTuple


class Row(NamedTuple):
    """One iteration; times in ns."""

    whole: int
    wait: int
    backward: int
    optimizer: int
    left_out: int
    exchange: int
    samples: int
    losses: int
    """How many were kept."""
    is_skipped: bool
    """Whether GradScaler left the step out."""


READ_AHEAD = 1
"""Batches that a loop may have drawn for the next step."""
FOREIGN_STEPS = 64
"""After so many outermost steps of other optimizers, the one that ended iterations no longer
does."""
WITHOUT_BACKWARD = 3
"""So many first steps without a backward pass are not training: Horovod's broadcast_optimizer_state
takes one."""


def used_batches(drawn: int, passes: int, reads_ahead: bool) -> slice:
    """Which of the batches that were drawn and not used yet a step uses: one for each backward
    pass, whenever it was drawn.

    Where more are left than a loop reads ahead, the others were drawn for an evaluation or a look
    at the data: the latest count.
    """
    count = min(max(1, drawn - READ_AHEAD) if reads_ahead else drawn, passes)
    first = drawn - count if drawn - count > READ_AHEAD else 0
    return slice(first, first + count)


class Recorder:
    """What is counted since the last iteration ended, and the rows of earlier iterations."""

    def __init__(self, iteration_ends: str | int | None = None) -> None:
        self.off = False
        """Whether nothing is recorded any more."""
        self.left = 0
        """Iterations until ``at_boundary`` is called; negative: never."""
        self.at_boundary: Callable[[], None] = lambda: None
        self.before_step: Callable[[Any, bool], None] | None = None
        """Called with the optimizer, and whether this step is within one of the same optimizer;
        until the blocks begin."""
        self.before_backward: Callable[[], None] | None = None
        """Called before each outermost backward pass; until the blocks begin."""
        self.after_step: Callable[[Any], None] | None = None
        self.on_batch: Callable[[Any, Any], None] | None = None
        """Called with a loader's iterator and what it yielded; until the blocks begin."""
        self.on_loader: Callable[[Any, Any], None] | None = None
        """Called with a loader and its iterator, which begins; until the blocks begin."""
        self.unread: Callable[[BaseException], None] = lambda _: None
        """Called with the error where something could not be read, which is then left out."""
        self.scaler: Any = None
        """The GradScaler that was used last."""
        self.model: Any = None
        """The trained model; None: not known yet, or trained in evaluation mode."""
        self.failed: Callable[[BaseException], None]
        self.hot: list[Any] = [
            self.pre_hook,
            self.post_hook,
            self.note_backward,
            self.used,
            used_batches,
            Row.__new__,
            self.end_iteration,
            self.ends_iteration,
        ]
        """Functions that run in every step."""
        self.rows: list[Row] = []
        self.losses: list[Any] = []
        self.versions: list[int] = []
        self.scaled: tuple[Any, Any] = (None, None)
        """A scaled loss of GradScaler's, and the loss."""
        self.overflows: list[tuple[int, Any]] = []
        """Number of a row, and whether a fused optimizer found infinite gradients in it."""
        self.start = perf_counter_ns()
        self.wait = self.backward = self.optimizer = self.left_out = 0
        self.exchange = self._exchange_before = 0
        """ns that ``thread`` has waited for exchange in all, and before this iteration."""
        self.thread = 0
        """The training thread; 0 while it waits for exchange."""
        self.drawn: list[int] = []
        """Samples of each batch that loaders have yielded and no iteration has used yet."""
        self.reads_ahead = False
        """Whether one of them is kept for the next iteration, however many backward passes this one
        takes."""
        self.last_samples = self.used_backwards = 0
        self.is_skipped = False
        self.backwards_then = 0
        """Backward passes when the last outermost step began."""
        self.backwards = self.fired = self.iterations = self.steps = 0
        self.depth = 0
        self.in_backward = self.is_evaluating = False
        self._began = self.backward_ended = 0
        self._frame: Any = None
        self._outer: Any = None
        self._ends = iteration_ends
        self._first: Any = lambda: None
        self._foreign = self.without_backward = self.losses_before = 0

    def pre_hook(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """As torch calls it before each ``step()``."""
        if self.off:
            return
        try:
            if self.depth and self._is_running():
                self.depth += 1
                if self.depth == 2 and optimizer is self._outer and self.before_step is not None:
                    self.before_step(optimizer, True)  # Horovod's: it has waited for the exchange
                return
            self.depth = 1
            self._frame, self._outer = sys._getframe(1), optimizer
            self.fired += 1
            if self.before_step is not None and self.backwards:
                self.before_step(optimizer, False)
            self._began, self.backwards_then = perf_counter_ns() - self.exchange, self.backwards
        except Exception as error:  # noqa: BLE001 - the agent's edge
            self.failed(error)

    def post_hook(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """As torch calls it after each ``step()`` that returned."""
        if self.off:
            return
        try:
            self.depth -= 1
            if self.depth > 0:
                return
            self.depth, self._frame, self._outer = 0, None, None
            now = perf_counter_ns()
            # what a closure does before is forward and backward
            began = max(self._began, self.backward_ended)
            self.optimizer += now - self.exchange - began
            if not self.backwards and self.without_backward < WITHOUT_BACKWARD:
                self.without_backward += 1
                return
            self.steps += 1
            if self.after_step is not None:
                self.after_step(optimizer)
            if self.ends_iteration(optimizer):
                self.end_iteration(now)
        except Exception as error:  # noqa: BLE001 - the agent's edge
            self.failed(error)

    def _is_running(self) -> bool:
        """Whether the outermost step still runs: one that raised an exception never came to its
        post hook.
        """
        frame: Any = sys._getframe(2)
        while frame is not None:
            if frame is self._frame:
                return True
            frame = frame.f_back
        return False

    def will_end(self, optimizer: Any) -> bool:
        """Whether an iteration is about to end with this optimizer's step; asked before
        ``ends_iteration``, which counts.
        """
        ends, first = self._ends, self._first()
        if ends is None:
            return first is optimizer or first is None or self._foreign >= FOREIGN_STEPS
        return self.steps % ends == 0 if isinstance(ends, int) else type(optimizer).__name__ == ends

    def ends_iteration(self, optimizer: Any) -> bool:
        """Whether an iteration ends with this optimizer's outermost step."""
        if self._ends is None and self._first() is optimizer:  # the usual case, quickly
            self._foreign = 0
            return True
        if not self.will_end(optimizer):
            self._foreign += 1
            return False
        if self._ends is None:
            self._first = weakref.ref(optimizer)
        self._foreign = 0
        return True

    def used(self) -> slice:
        """Which of ``drawn`` the ending iteration has used."""
        return used_batches(len(self.drawn), self.backwards - self.used_backwards, self.reads_ahead)

    def samples(self) -> int:
        """Samples of the ending iteration; where its loader yielded nothing for it, those of the
        last batch.
        """
        return sum(self.drawn[self.used()]) or self.last_samples

    def end_iteration(self, now: int) -> None:
        """Keep the row of the iteration that ended, and call ``at_boundary`` where it is due."""
        used = self.used()
        self.last_samples = samples = sum(self.drawn[used]) or self.last_samples
        del self.drawn[: used.stop]
        self.used_backwards = self.backwards
        count = len(self.losses)
        self.rows.append(
            Row(
                now - self.start,
                self.wait,
                self.backward,
                self.optimizer,
                self.left_out,
                self.exchange - self._exchange_before,
                samples,
                count - self.losses_before,
                self.is_skipped,
            )
        )
        self._exchange_before = self.exchange
        self.losses_before = count
        self.wait = self.backward = self.optimizer = self.left_out = 0
        self.is_skipped = False
        self.start = now
        self.iterations += 1
        self.left -= 1
        if self.left == 0:
            self.at_boundary()

    def skip(self, optimizer: Any) -> None:
        """GradScaler left this optimizer's step out: the gradients had overflowed."""
        self.is_skipped = True
        self.steps += 1
        if self.after_step is not None:
            self.after_step(optimizer)
        if self.ends_iteration(optimizer):
            self.end_iteration(perf_counter_ns())

    def begin(self, iterations: int) -> None:
        """Drop all rows and losses and restart, now; ``at_boundary`` is called after so many
        iterations.
        """
        self.rows, self.losses, self.versions, self.overflows = [], [], [], []
        self.losses_before = 0
        self.left = iterations
        self.start = perf_counter_ns()

    def note_backward(self, tensors: Any) -> None:
        """Count a backward pass that began at these tensors and has ended, and its loss."""
        self.backwards += 1
        self.is_evaluating = False  # a model may be trained in evaluation mode
        tensor = tensors
        if isinstance(tensors, (tuple, list)):
            tensor = tensors[0] if len(tensors) == 1 else None
        if tensor is None:
            return
        scaled, loss = self.scaled
        if scaled is not None:
            if scaled is tensor:
                tensor = loss
            self.scaled = (None, None)
        if tensor.numel() == 1:
            self.losses.append(tensor.detach())
            self.versions.append(tensor._version)


for _hook in (Recorder.pre_hook, Recorder.post_hook):
    _hook._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch.compile calls it as it is
