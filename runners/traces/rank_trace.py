"""The traced steps of one rank: torch's profiler with a range for each step and phase, beside the
library's own timeline.
"""

from __future__ import annotations

import base64
import gzip
import heapq
import json
import math
import tempfile
import threading
from collections.abc import Callable, Mapping
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from backends.base import Backend, Prepared
from measurement.records.block import PHASES
from measurement.records.record import Row, Span
from measurement.step_timer import StepTimer
from runners.protocol import TraceReply
from runners.traces.trace_file import TRAINING

STEP_PREFIX = "ProfilerStep#"
"""Prefix by which torch's own tools recognize a step."""
DATA_WAIT, FORWARD, BACKWARD, OPTIMIZER, _ = range(len(PHASES))
EXCHANGES = ("gloo:", "nccl", "mpi:")
"""Prefixes of collectives: over Gloo from issue to completion; over NCCL their kernels."""
LIBRARY = ("torch::distributed::reducer::", "torch.distributed.ddp.reducer::")
"""Prefixes of what DDP's reducer does on the training thread."""
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
SHOWN_CATEGORIES = ("cpu_op", "user_annotation", "cuda_runtime", *ON_GPU)
"""Kinds of events that a viewer shows."""
MAX_EVENTS = 400_000
"""Limit for all ranks of an arm: at about 25 bytes each, the files of two arms have less than 50
MB."""
ITEM_BYTES = {
    **dict.fromkeys(("double", "Double", "long int", "Long"), 8),
    **dict.fromkeys(("float", "Float", "int", "Int"), 4),
    **dict.fromkeys(("c10::Half", "Half", "c10::BFloat16", "BFloat16"), 2),
}
"""Bytes of an element by the profiler's name of its type; 1 for others."""


class PhaseRanges(StepTimer):
    """Takes the place of a timer: opens a range of the profiler for each step, and one for each
    phase in it.
    """

    def __init__(self, device: torch.device, *, micro_steps: int) -> None:
        super().__init__(device)
        self._micro_steps, self._passes = micro_steps, 0
        self._open: list[Any] = []

    def begin(self, number: int) -> None:
        """Begin a step and its first phase."""
        self._passes = 0
        self._enter(f"{STEP_PREFIX}{number}")
        self._enter(PHASES[DATA_WAIT])

    def mark(self, phase: int) -> None:
        """End a phase, and begin the one that follows in a training step."""
        self._leave()
        self._passes += phase == BACKWARD
        after = {
            DATA_WAIT: FORWARD,
            FORWARD: BACKWARD,
            BACKWARD: DATA_WAIT if self._passes < self._micro_steps else OPTIMIZER,
        }
        if phase in after:
            self._enter(PHASES[after[phase]])

    def end_step(self) -> None:
        """End the step."""
        self._leave()

    def skip(self) -> None:
        """Do nothing: no range is open."""

    def _enter(self, name: str) -> None:
        self._open.append(record_function(name))
        self._open[-1].__enter__()

    def _leave(self) -> None:
        self._open.pop().__exit__(None, None, None)


def trace_steps(
    step: Callable[[StepTimer], int],
    *,
    backend: Backend,
    prepared: Prepared,
    device: torch.device,
    steps: int,
    max_events: int,
) -> TraceReply:
    """Take steps and trace them. Collective.

    Args:
        step: takes one training step.
        backend: provides spans that the profiler does not see.
        prepared: the model and optimizer that are trained.
        device: the device of this rank.
        steps: number of steps.
        max_events: if there are more events, the longest are kept.
    """
    ranges = PhaseRanges(device, micro_steps=backend.micro_steps)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    backend.barrier()
    every = _ExperimentalConfig(profile_all_threads=True)  # Gloo's among them
    with (
        backend.traced(prepared) as library_spans,
        profile(activities=activities, record_shapes=True, experimental_config=every) as profiler,
    ):
        for number in range(steps):
            ranges.begin(number)
            step(ranges)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    spans, events = read_profile(_exported(profiler))
    longest = heapq.nlargest(max_events, events, key=itemgetter("dur"))
    packed = gzip.compress(json.dumps(longest, separators=(",", ":")).encode(), mtime=0)
    return TraceReply(spans=[*library_spans, *spans], events=base64.b64encode(packed).decode())


def _exported(profiler: Any) -> Mapping[str, Any]:
    """The profiler's events, as it exports them."""
    with tempfile.TemporaryDirectory(prefix="ringside-trace-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        # nanoseconds, which nest
        document: Mapping[str, Any] = json.loads(path.read_bytes(), parse_float=Decimal)
    return document


def read_profile(document: Mapping[str, Any]) -> tuple[list[Span], list[dict[str, Any]]]:
    """The events that reports count, and those that a viewer shows on rows of threads and streams:
    nanoseconds since the epoch. Collectives are among the first only.
    """
    zero_ns = int(document.get("baseTimeNanoseconds", 0))
    spans, events = list[Span](), list[dict[str, Any]]()
    for event in document["traceEvents"]:
        if event.get("ph") != "X" or event.get("cat") not in SHOWN_CATEGORIES:
            continue
        name, row = event["name"], _row_of(event)
        begin_ns, length_ns = zero_ns + int(1000 * event["ts"]), int(1000 * event["dur"])
        if row is not None:
            span = Span(
                row=row,
                name=name.removeprefix(STEP_PREFIX),
                begin_ns=begin_ns,
                length_ns=length_ns,
                num_bytes=_bytes(event.get("args", {})) if row == "exchange" else None,
            )
            spans.append(span)
        if row != "exchange":
            shown = {"name": name, "cat": event["cat"], "ts": begin_ns, "dur": length_ns}
            events.append(shown | {"row": _place(event)})
    return spans, events


def _row_of(event: Mapping[str, Any]) -> Row | None:
    name, on_gpu = event["name"], event["cat"] in ON_GPU
    if name.startswith(STEP_PREFIX):
        return "step"
    if name in PHASES:
        return "phase"
    if name.startswith(LIBRARY):
        return "library"
    return "exchange" if name.startswith(EXCHANGES) and on_gpu == name.startswith("nccl") else None


def _place(event: Mapping[str, Any]) -> str:
    """The viewer's row."""
    if event["cat"] in ON_GPU:
        return f"stream {event['tid']}"
    return TRAINING if event["tid"] == threading.get_native_id() else f"thread {event['tid']}"


def _bytes(args: Mapping[str, Any]) -> int | None:
    """Bytes of an operation's tensors; None if the profiler does not record them."""
    if "In msg nelems" in args:  # a kernel of NCCL's
        return int(args["In msg nelems"]) * ITEM_BYTES.get(str(args.get("dtype")), 1)
    sizes = (
        ITEM_BYTES.get(kind, 1) * _elements(shape)
        for kind, shape in zip(args.get("Input type", []), args.get("Input Dims", []), strict=False)
        if shape
    )
    return sum(sizes) or None


def _elements(shape: Any) -> int:
    """Elements of a tensor, or of a list of tensors."""
    return sum(map(_elements, shape)) if shape and isinstance(shape[0], list) else math.prod(shape)
