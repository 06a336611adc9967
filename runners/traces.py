"""A traced launch: the steps of each rank under torch's profiler, beside the library's own timeline
and NCCL's log; then, on the driver, all ranks on one clock, and a file for Perfetto.

The file's format: "Trace Event Format" (Google). Slices of a row nest, and every row has a name.
NCCL's lines are those of 2.28 to 2.30 (src/init.cc, src/transport, src/enqueue.cc).
"""

from __future__ import annotations

import base64
import ctypes
import gzip
import heapq
import itertools
import json
import math
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from backends.base import Backend, Prepared
from measurement.records.block import PHASES
from measurement.records.record import NcclChoices, NcclCollective, Row, Span
from measurement.step_timer import StepTimer
from runners.protocol import TraceReply

TRAINING, EXCHANGE = "training thread", "exchange"
"""Rows, as viewers name them."""
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
NCCL_LOG_VARIABLES = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
    "NCCL_DEBUG_FILE": "",
}
"""Make NCCL write its choices to stdout, which goes into the rank's log."""
NCCL_LINES = {
    "version": re.compile(r"NCCL version (\S+)"),
    "network": re.compile(r"NCCL INFO Using network (.+)"),
    "channels": re.compile(r"NCCL INFO (\d+) coll channels"),
    "connection": re.compile(r"NCCL INFO Channel .* via (\S+)"),
    "collective": re.compile(r"NCCL INFO (\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)"),
}
NCCL_CARD = re.compile(r"/\d+(\(\d+\))?(?=/|$)")
"""The number of a network card, and the rank that sends on behalf of this one."""
MAX_NCCL_COLLECTIVES = 8
"""The largest messages are kept."""


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


def read_nccl_log(path: Path) -> NcclChoices | None:
    """Read a rank's log, after flushing what libraries have printed; None if it has no lines of
    NCCL.
    """
    ctypes.CDLL(None).fflush(None)
    return nccl_choices(path.read_text(encoding="utf-8", errors="replace").splitlines())


def nccl_choices(lines: Sequence[str]) -> NcclChoices | None:
    """Read the lines of one rank; None if none are NCCL's."""
    found = {
        name: dict.fromkeys(match.groups() for match in map(pattern.search, lines) if match)
        for name, pattern in NCCL_LINES.items()
    }
    if not any(found.values()):
        return None
    collectives = [
        NcclCollective(operation=operation, num_bytes=size, algorithm=algorithm, protocol=protocol)
        for operation, size, algorithm, protocol in found["collective"]
    ]
    collectives.sort(key=lambda collective: collective.num_bytes, reverse=True)
    last = {
        name: value.strip()
        for name in ("version", "network", "channels")
        for (value,) in found[name]
    }
    return NcclChoices.model_validate(
        {
            **last,
            "connections": sorted({NCCL_CARD.sub("", name) for (name,) in found["connection"]}),
            "collectives": collectives[:MAX_NCCL_COLLECTIVES],
        }
    )


def merge_nccl_choices(ranks: Sequence[NcclChoices | None]) -> NcclChoices | None:
    """Rank 0's choices, with the connections of all: the others print no version and no
    algorithms.
    """
    first = ranks[0]
    if first is None:
        return None
    connections = {name for rank in ranks if rank is not None for name in rank.connections}
    return first.model_copy(update={"connections": sorted(connections)})


@dataclass(frozen=True, kw_only=True)
class TracedRank:
    """One rank, on the driver's clock."""

    rank: int
    spans: list[Span]
    events: list[dict[str, Any]]


def on_one_clock(replies: Sequence[TraceReply], behind_s: Sequence[float]) -> list[TracedRank]:
    """Put all ranks of an arm on the driver's clock.

    ``behind_s``: by rank, how far the clock of its host is behind.
    """
    ranks = []
    for rank, (reply, behind) in enumerate(zip(replies, behind_s, strict=True)):
        shift = round(1e9 * behind)
        events = json.loads(gzip.decompress(base64.b64decode(reply.events)))
        for event in events:
            event["ts"] += shift
        for span in reply.spans:
            span.rank = rank
            span.begin_ns += shift
            if span.entered_ns is not None:
                span.entered_ns += shift
        ranks.append(TracedRank(rank=rank, spans=reply.spans, events=events))
    operations = [
        span
        for rank in ranks
        for span in rank.spans
        if _is_noted(span) and span.name != "submitted"
    ]
    operations.sort(key=lambda operation: operation.begin_ns)
    return [
        replace(rank, spans=list(_with_operations(rank, operations))) if operations else rank
        for rank in ranks
    ]


def _is_noted(span: Span) -> bool:
    """Whether a library noted it for the exchange of named tensors."""
    return span.row == "exchange" and bool(span.tensors)


def _with_operations(rank: TracedRank, operations: Sequence[Span]) -> Iterator[Span]:
    """A rank's spans with the operations that rank 0 alone noted, each from when this rank
    submitted the last of its tensors.
    """
    submitted: dict[str, list[Span]] = {}
    for span in rank.spans:
        if not _is_noted(span):
            yield span
        elif span.name == "submitted":
            submitted.setdefault(span.tensors[0], []).append(span)
    for operation in operations:
        parts = [
            submitted[name].pop(0)
            for name in dict.fromkeys(operation.tensors)
            if submitted.get(name)
        ]
        if parts:
            begin_ns = min(max(part.begin_ns for part in parts), operation.begin_ns)
            size = sum(part.num_bytes or 0 for part in parts)
            times = {"begin_ns": begin_ns, "length_ns": operation.end_ns - begin_ns}
            yield operation.model_copy(update={"rank": rank.rank, "num_bytes": size, **times})


def perfetto_file(ranks: Sequence[TracedRank]) -> bytes:
    """The file of an arm: compressed JSON, with times from 0."""
    rows = {rank.rank + 1: _rows(rank) for rank in ranks}
    zero_ns = min(
        event["ts"] for of_rank in rows.values() for row in of_rank.values() for event in row
    )
    events: list[dict[str, Any]] = []
    for pid, of_rank in rows.items():
        events += _named("process", f"rank {pid - 1}", pid)
        tids = itertools.count(1)
        for name, slices in of_rank.items():
            for number, lane in enumerate(lanes(slices), start=1):
                tid = next(tids)
                events += _named("thread", name if number == 1 else f"{name} ({number})", pid, tid)
                events += [
                    event
                    | {"ph": "X", "pid": pid, "tid": tid}
                    | {"ts": (event["ts"] - zero_ns) / 1000, "dur": event["dur"] / 1000}
                    for event in lane
                ]
    document = {"displayTimeUnit": "ms", "traceEvents": events}
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)


def _named(kind: str, name: str, pid: int, tid: int = 0) -> list[dict[str, Any]]:
    """The name and the position of a process or a row."""
    fields = {"name": {"name": name}, "sort_index": {"sort_index": tid or pid}}
    return [
        {"ph": "M", "name": f"{kind}_{field}", "pid": pid, "tid": tid, "args": args}
        for field, args in fields.items()
    ]


def _rows(rank: TracedRank) -> dict[str, list[dict[str, Any]]]:
    """The slices of a rank by row: its threads, and the exchange."""
    rows: dict[str, list[dict[str, Any]]] = {TRAINING: []}
    for event in rank.events:
        rows.setdefault(event.pop("row"), []).append(event)
    rows[EXCHANGE] = [
        {
            "name": f"{span.name} {span.num_bytes or 0:,} bytes",
            "cat": EXCHANGE,
            "args": {"bytes": span.num_bytes, "tensors": span.tensors},
            "ts": span.begin_ns,
            "dur": span.length_ns,
        }
        for span in rank.spans
        if span.row == "exchange"
    ]
    return rows


def lanes(slices: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Distribute slices over rows so that in each row slices follow or contain each other, as
    viewers need.
    """
    rows: list[list[dict[str, Any]]] = []
    open_ends: list[list[int]] = []
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        end_ns = event["ts"] + event["dur"]
        for ends in open_ends:
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
        fitting = (row for row, ends in enumerate(open_ends) if not ends or end_ns <= ends[-1])
        place = next(fitting, len(rows))
        if place == len(rows):
            rows.append([])
            open_ends.append([])
        rows[place].append(event)
        open_ends[place].append(end_ns)
    return rows
