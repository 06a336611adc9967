"""The traced steps of one rank: torch's profiler with a range for each step and phase, beside the library's own timeline."""

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

STEP = "ProfilerStep#"
"""What torch's own tools know a step by."""
DATA_WAIT, FORWARD, BACKWARD, OPTIMIZER, _ = range(len(PHASES))
EXCHANGES = ("gloo:", "nccl", "mpi:")
"""How collectives begin: over Gloo where they were issued until they are done; over NCCL their kernels."""
LIBRARY = ("torch::distributed::reducer::", "torch.distributed.ddp.reducer::")
"""How DDP's reducer begins what it does on the training thread."""
GRADIENT = "torch::autograd::AccumulateGrad"
CONVERSION = "aten::copy_"
"""Between tensors of unlike types."""
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
SHOWN = ("cpu_op", "user_annotation", "cuda_runtime", *ON_GPU)
"""Kinds of events that a viewer shows."""
FLOWS = ("fwdbwd", "ac2g")
MAX_EVENTS = 400_000
"""How many an arm's ranks keep together: a viewers' file of two arms then has less than 50 MB, at about 25 bytes each."""
ITEM_BYTES = {
    **dict.fromkeys(("double", "Double", "long int", "Long"), 8),
    **dict.fromkeys(("float", "Float", "int", "Int"), 4),
    **dict.fromkeys(("c10::Half", "Half", "c10::BFloat16", "BFloat16"), 2),
}
"""By what the profiler calls a tensor's type; others count a byte."""


class PhaseRanges(StepTimer):
    """In the place of a clock: opens a range of the profiler for each step, and one for each phase in it."""

    def __init__(self, device: torch.device, *, micro_steps: int) -> None:
        super().__init__(device)
        self._micro_steps, self._passes = micro_steps, 0
        self._open: list[Any] = []

    def begin(self, number: int) -> None:
        """Begin a step and its first phase."""
        self._passes = 0
        self._enter(f"{STEP}{number}")
        self._enter(PHASES[DATA_WAIT])

    def mark(self, phase: int) -> None:
        """End a phase, and begin the one that follows in a training step."""
        self._leave()
        self._passes += phase == BACKWARD
        after = {DATA_WAIT: FORWARD, FORWARD: BACKWARD, BACKWARD: DATA_WAIT if self._passes < self._micro_steps else OPTIMIZER}
        if phase in after:
            self._enter(PHASES[after[phase]])

    def end_step(self) -> None:
        """End the step."""
        self._leave()

    def skip(self) -> None:
        """What follows is outside of every range."""

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
    most_events: int,
) -> TraceReply:
    """Take steps and trace them. Collective.

    Args:
        step: takes one.
        backend: is asked for what the profiler does not see.
        prepared: what is trained.
        device: that this rank computes on.
        steps: how many.
        most_events: the longest are kept, where there are more.
    """
    ranges = PhaseRanges(device, micro_steps=backend.micro_steps)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    backend.barrier()
    every = _ExperimentalConfig(profile_all_threads=True)  # Gloo's among them
    with (
        backend.traced(prepared) as own,
        profile(activities=activities, record_shapes=True, experimental_config=every) as profiler,
    ):
        for number in range(steps):
            ranges.begin(number)
            step(ranges)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    document = _exported(profiler)
    spans, events = [*own, *spans_of(document, own)], list(_events(document))
    if len(events) > most_events:
        longest = sorted((one for one in events if "dur" in one), key=lambda one: one["dur"], reverse=True)
        events = longest[:most_events]
    packed = gzip.compress(json.dumps(events, separators=(",", ":")).encode(), mtime=0)
    return TraceReply(spans=spans, events=base64.b64encode(packed).decode())


def _exported(profiler: Any) -> Mapping[str, Any]:
    """The profiler's events, as it writes them."""
    with tempfile.TemporaryDirectory(prefix="ringside-trace-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        document: Mapping[str, Any] = json.loads(path.read_bytes(), parse_float=Decimal)  # nanoseconds, which nest
    return document


def _slices(document: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], int, int]]:
    """Every event that takes time, when it begins and how long it takes, in nanoseconds since the epoch."""
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in SHOWN and isinstance(event.get("pid"), int):
            yield event, _begin_ns(document, event), int(1000 * event["dur"])


def _begin_ns(document: Mapping[str, Any], event: Mapping[str, Any]) -> int:
    return int(document.get("baseTimeNanoseconds", 0)) + int(1000 * event["ts"])


def spans_of(document: Mapping[str, Any], own: Sequence[Span] = ()) -> Iterator[Span]:
    """What reports draw and count of the profiler's events. ``own``: collectives that it did not see."""
    sent = {_elements(shape) for event in document["traceEvents"] if _row_of(event) == "exchange" for shape in _shapes(event)}
    sent |= {(one.num_bytes or 0) // ITEM_BYTES["Half"] for one in own if one.name.startswith(EXCHANGES)}
    on_cpu = not any(event.get("cat") in ON_GPU for event in document["traceEvents"])  # a GPU does these when it gets to them
    for event, begin_ns, length_ns in _slices(document):
        name, row = event["name"], _row_of(event)
        if row is None and on_cpu and _converts(event, sent):
            name, row = COMPRESSION, "library"
        if row is not None and (on_cpu or row != "gradient"):
            size = _bytes(event.get("args", {})) if row in ("exchange", "gradient") else None
            yield Span(row=row, name=name.removeprefix(STEP), begin_ns=begin_ns, length_ns=length_ns, num_bytes=size)


def _converts(event: Mapping[str, Any], sent: Set[int]) -> bool:
    """Whether it copies a whole bucket, which lies flat, into another type or back."""
    if event["name"] != CONVERSION:
        return False
    shapes, kinds = _shapes(event), event["args"].get("Input type", [])
    return len(shapes) > 1 and len(shapes[0]) == 1 and shapes[0] == shapes[1] and shapes[0][0] in sent and kinds[0] != kinds[1]


def _row_of(event: Mapping[str, Any]) -> Row | None:
    name = event["name"]
    if name.startswith(STEP):
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
    """Bytes of an operation's tensors; None where the profiler does not tell."""
    if "In msg nelems" in args:  # a kernel of NCCL's
        return int(args["In msg nelems"]) * ITEM_BYTES.get(str(args.get("dtype")), 1)
    kinds, shapes = args.get("Input type"), args.get("Input Dims")
    if not kinds or not shapes:
        return None
    return sum(ITEM_BYTES.get(kind, 1) * _elements(shape) for kind, shape in zip(kinds, shapes, strict=False) if shape) or None


def _shapes(event: Mapping[str, Any]) -> list[Any]:
    """Shapes of the tensors that an operation takes."""
    return [shape for shape in event.get("args", {}).get("Input Dims") or [] if shape]


def _elements(shape: Any) -> int:
    """Elements of a tensor, or of a list of tensors."""
    return sum(map(_elements, shape)) if shape and isinstance(shape[0], list) else math.prod(shape)


def _events(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What a viewer shows: slices on the rows of their threads and streams, and the arrows between them; in nanoseconds."""
    own = threading.get_native_id()

    def place(event: Mapping[str, Any]) -> str:
        on_gpu = event.get("cat") in ON_GPU or (event.get("cat") == "ac2g" and event["ph"] == "f")
        return f"stream {event['tid']}" if on_gpu else TRAINING if event["tid"] == own else f"thread {event['tid']}"

    for event, begin_ns, length_ns in _slices(document):
        if _row_of(event) != "exchange":
            kept = {key: value for key, value in event.get("args", {}).items() if key in ("stream", "correlation", "device")}
            what = {"ph": "X", "name": event["name"], "cat": event["cat"], "args": kept}
            yield what | {"row": place(event), "ts": begin_ns, "dur": length_ns}
    arrows = [one for one in document["traceEvents"] if one.get("ph") in ("s", "f") and one.get("cat") in FLOWS]
    ends = {(one["cat"], one["id"], one["ph"]) for one in arrows}
    for one in arrows:
        if {(one["cat"], one["id"], "s"), (one["cat"], one["id"], "f")} <= ends:
            what = {key: one[key] for key in ("ph", "id", "cat")} | {"name": one["cat"], "bp": "e"}
            yield what | {"row": place(one), "ts": _begin_ns(document, one)}
