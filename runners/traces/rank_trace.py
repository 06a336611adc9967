"""The traced steps of one rank: torch's profiler with a range for each step and phase, beside the
library's own timeline.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from backends.base import Backend, Prepared
from measurement.probes.step_timer import StepTimer
from measurement.records.record_types import PHASES
from measurement.records.trace import COMPRESSION, Row, Span
from runners.protocol.messages import TraceReply
from runners.traces.trace_file import TRAINING

STEP_PREFIX = "ProfilerStep#"
"""Prefix by which torch's own tools recognize a step."""
DATA_WAIT, FORWARD, BACKWARD, OPTIMIZER, _ = range(len(PHASES))
EXCHANGES = ("gloo:", "nccl", "mpi:")
"""Prefixes of collectives: over Gloo from issue to completion; over NCCL their kernels."""
LIBRARY = ("torch::distributed::reducer::", "torch.distributed.ddp.reducer::")
"""Prefixes of what DDP's reducer does on the training thread."""
GRADIENT = "torch::autograd::AccumulateGrad"
CONVERSION = "aten::copy_"
"""A copy between tensors of different types."""
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
SHOWN_CATEGORIES = ("cpu_op", "user_annotation", "cuda_runtime", *ON_GPU)
"""Kinds of events that a viewer shows."""
FLOWS = ("fwdbwd", "ac2g")
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
    document = _exported(profiler)
    spans, events = [*library_spans, *spans_of(document, library_spans)], list(_events(document))
    if len(events) > max_events:
        longest = sorted(
            (event for event in events if "dur" in event),
            key=lambda event: event["dur"],
            reverse=True,
        )
        events = longest[:max_events]
    packed = gzip.compress(json.dumps(events, separators=(",", ":")).encode(), mtime=0)
    return TraceReply(spans=spans, events=base64.b64encode(packed).decode())


def _exported(profiler: Any) -> Mapping[str, Any]:
    """The profiler's events, as it exports them."""
    with tempfile.TemporaryDirectory(prefix="ringside-trace-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        # nanoseconds, which nest
        document: Mapping[str, Any] = json.loads(path.read_bytes(), parse_float=Decimal)
    return document


def _slices(document: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], int, int]]:
    """Every event that takes time, with its begin and length in nanoseconds since the epoch."""
    for event in document["traceEvents"]:
        if (
            event.get("ph") == "X"
            and event.get("cat") in SHOWN_CATEGORIES
            and isinstance(event.get("pid"), int)
        ):
            yield event, _begin_ns(document, event), int(1000 * event["dur"])


def _begin_ns(document: Mapping[str, Any], event: Mapping[str, Any]) -> int:
    return int(document.get("baseTimeNanoseconds", 0)) + int(1000 * event["ts"])


def spans_of(document: Mapping[str, Any], library_spans: Sequence[Span] = ()) -> Iterator[Span]:
    """The profiler's events that reports draw and count.

    ``library_spans``: collectives that the profiler did not see.
    """
    sent = {
        _elements(shape)
        for event in document["traceEvents"]
        if _row_of(event) == "exchange"
        for shape in _shapes(event)
    }
    sent |= {
        (span.num_bytes or 0) // ITEM_BYTES["Half"]
        for span in library_spans
        if span.name.startswith(EXCHANGES)
    }
    # a GPU does these when it gets to them
    on_cpu = not any(event.get("cat") in ON_GPU for event in document["traceEvents"])
    for event, begin_ns, length_ns in _slices(document):
        name, row = event["name"], _row_of(event)
        if row is None and on_cpu and _converts(event, sent):
            name, row = COMPRESSION, "library"
        if row is not None and (on_cpu or row != "gradient"):
            size = _bytes(event.get("args", {})) if row in ("exchange", "gradient") else None
            yield Span(
                row=row,
                name=name.removeprefix(STEP_PREFIX),
                begin_ns=begin_ns,
                length_ns=length_ns,
                num_bytes=size,
            )


def _converts(event: Mapping[str, Any], sent: Set[int]) -> bool:
    """Whether it converts a whole bucket, which is flat, into another type or back."""
    if event["name"] != CONVERSION:
        return False
    shapes, kinds = _shapes(event), event["args"].get("Input type", [])
    return (
        len(shapes) > 1
        and len(shapes[0]) == 1
        and shapes[0] == shapes[1]
        and shapes[0][0] in sent
        and kinds[0] != kinds[1]
    )


def _row_of(event: Mapping[str, Any]) -> Row | None:
    name = event["name"]
    if name.startswith(STEP_PREFIX):
        return "step"
    if name in PHASES:
        return "phase"
    if name.startswith(LIBRARY):
        return "library"
    if name == GRADIENT:
        return "gradient"
    on_gpu = event.get("cat") in ON_GPU
    return "exchange" if name.startswith(EXCHANGES) and on_gpu == name.startswith("nccl") else None


def _bytes(args: Mapping[str, Any]) -> int | None:
    """Bytes of an operation's tensors; None if the profiler does not record them."""
    if "In msg nelems" in args:  # a kernel of NCCL's
        return int(args["In msg nelems"]) * ITEM_BYTES.get(str(args.get("dtype")), 1)
    kinds, shapes = args.get("Input type"), args.get("Input Dims")
    if not kinds or not shapes:
        return None
    return (
        sum(
            ITEM_BYTES.get(kind, 1) * _elements(shape)
            for kind, shape in zip(kinds, shapes, strict=False)
            if shape
        )
        or None
    )


def _shapes(event: Mapping[str, Any]) -> list[Any]:
    """Shapes of the tensors that an operation takes."""
    return [shape for shape in event.get("args", {}).get("Input Dims") or [] if shape]


def _elements(shape: Any) -> int:
    """Elements of a tensor, or of a list of tensors."""
    return sum(map(_elements, shape)) if shape and isinstance(shape[0], list) else math.prod(shape)


def _events(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events for a viewer: slices on rows of threads and streams, and arrows between them; in
    nanoseconds.
    """
    training_thread = threading.get_native_id()

    def place(event: Mapping[str, Any]) -> str:
        on_gpu = event.get("cat") in ON_GPU or (event.get("cat") == "ac2g" and event["ph"] == "f")
        return (
            f"stream {event['tid']}"
            if on_gpu
            else TRAINING
            if event["tid"] == training_thread
            else f"thread {event['tid']}"
        )

    for event, begin_ns, length_ns in _slices(document):
        if _row_of(event) != "exchange":
            args = {
                key: value
                for key, value in event.get("args", {}).items()
                if key in ("stream", "correlation", "device")
            }
            slice_event = {"ph": "X", "name": event["name"], "cat": event["cat"], "args": args}
            yield slice_event | {"row": place(event), "ts": begin_ns, "dur": length_ns}
    arrows = [
        event
        for event in document["traceEvents"]
        if event.get("ph") in ("s", "f") and event.get("cat") in FLOWS
    ]
    arrow_ends = {(event["cat"], event["id"], event["ph"]) for event in arrows}
    for event in arrows:
        if {(event["cat"], event["id"], "s"), (event["cat"], event["id"], "f")} <= arrow_ends:
            slice_event = {key: event[key] for key in ("ph", "id", "cat")} | {
                "name": event["cat"],
                "bp": "e",
            }
            yield slice_event | {"row": place(event), "ts": _begin_ns(document, event)}
