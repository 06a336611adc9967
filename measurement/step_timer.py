"""One clock for every backend: marks at phase boundaries, read once after the block.

On CPU a mark is one ``perf_counter_ns``; on GPU one CUDA event on the current stream, read after a
single synchronisation when the block is over. Inside a step the timer adds no collective, no
synchronisation and no device-to-host copy.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from measurement.records.block import PHASES

if TYPE_CHECKING:
    import torch


class StepTimer:
    """Times the steps of one block on one rank.

    Called by every rank; nothing here is collective. Call ``start()`` first and ``read()`` once at
    the end. Within each step, call ``mark(phase)`` at the end of each phase, in any order and
    repeatedly where gradients are accumulated, then ``end_step()``. Steps are contiguous: each
    begins where the one before ended. So the steps' times sum to the block's, without what ``skip``
    leaves out between two steps.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._stamps: list[Any] = []
        self._phases: list[int] = []
        self._ends: list[int] = []
        self._skipped: list[int] = []
        self._stamp = self._cuda_event if self._on_gpu else time.perf_counter_ns

    def start(self) -> None:
        """Begin the block's first step."""
        self._stamps, self._phases, self._ends, self._skipped = [self._stamp()], [], [], []

    def mark(self, phase: int) -> None:
        """End of a phase (an index into ``measurement.records.block.PHASES``)."""
        self._stamps.append(self._stamp())
        self._phases.append(phase)

    def end_step(self) -> None:
        """The phase marked last was the step's last."""
        self._ends.append(len(self._phases))

    def skip(self) -> None:
        """Leave out the time since the last mark; called between two steps."""
        self._skipped.append(len(self._phases))
        self.mark(0)

    def read(self) -> npt.NDArray[np.float64]:
        """Seconds spent in each phase of each step.

        Returns:
            float64 [steps, len(PHASES)], seconds. On GPU this waits for the device.
        """
        spans = (
            self._cuda_spans()
            if self._on_gpu
            else np.diff(np.asarray(self._stamps, dtype=np.int64)) / 1e9
        )
        spans[self._skipped] = 0.0
        times = np.zeros((len(self._ends), len(PHASES)))
        begin = 0
        for step, end in enumerate(self._ends):
            np.add.at(times[step], self._phases[begin:end], spans[begin:end])
            begin = end
        return times

    @staticmethod
    def _cuda_event() -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _cuda_spans(self) -> npt.NDArray[np.float64]:
        self._stamps[-1].synchronize()
        pairs = zip(self._stamps, self._stamps[1:], strict=False)
        return np.array([begin.elapsed_time(end) / 1e3 for begin, end in pairs])
