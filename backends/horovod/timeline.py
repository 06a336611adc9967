"""Horovod's exchange while steps are traced: its timeline, which rank 0 writes, and this rank's
submitted tensors.

Written against Horovod 0.28.1, started with HOROVOD_TIMELINE=DYNAMIC.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from measurement.errors import LaunchError
from measurement.records.record import Span

OPERATION = re.compile(r"^(ALLREDUCE|ALLGATHER|BROADCAST|REDUCESCATTER|ALLTOALL|ADASUM)$")
"""Events that span an operation, from when all ranks are ready until it is done."""
START = "start_time_since_epoch_in_micros"
WRITTEN_S = 10.0
"""Time limit for the thread that writes the timeline."""
SUBMITS = ("_allreduce_grad_async", "_grouped_allreduce_grad_async")


@contextmanager
def traced(hvd: Any, optimizer: Any) -> Iterator[list[Span]]:
    """A context whose list has, at its end, an exchange for each tensor that this rank submitted,
    and rank 0's operations.

    Raises:
        LaunchError: the timeline is not written.
    """
    spans: list[Span] = []
    with (
        tempfile.TemporaryDirectory(prefix="ringside-timeline-") as folder,
        noting_submits(optimizer, spans),
    ):
        path = Path(folder) / "timeline.json"
        hvd.start_timeline(str(path), mark_cycles=True)
        yield spans
        time.sleep(0.05)  # some cycles, so that the last operations are recorded
        hvd.stop_timeline()
        if hvd.rank() == 0:
            spans += read_timeline(_when_written(path))


@contextmanager
def noting_submits(optimizer: Any, spans: list[Span]) -> Iterator[None]:
    """A context that records each tensor which the optimizer submits to Horovod, as an exchange of
    no length.
    """

    def noting(submit: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def note(argument: Any) -> Any:
            parameters = argument if isinstance(argument, Sequence) else [argument]
            handle = submit(argument)
            names = [str(optimizer._parameter_names.get(parameter)) for parameter in parameters]
            when: dict[str, Any] = {"begin_ns": time.time_ns(), "length_ns": 0}
            gathered = [
                part
                for parameter, name in zip(parameters, names, strict=True)
                for part in _gathered(parameter, name, optimizer)
            ]
            size = sum(parameter.nbytes for parameter in parameters)
            spans.extend(
                Span(row="exchange", name="submitted", num_bytes=size, tensors=sent, **when)
                for sent, size in gathered or [(names, size)]
            )
            return handle

        return note

    submits = [name for name in SUBMITS if hasattr(optimizer, name)]
    for name in submits:
        setattr(optimizer, name, noting(getattr(optimizer, name)))
    try:
        yield
    finally:
        for name in submits:
            delattr(optimizer, name)


def _gathered(parameter: Tensor, name: str, optimizer: Any) -> list[tuple[list[str], int]]:
    """Names and bytes of the two tensors that Horovod gathers for a sparse gradient; empty where it
    is sent as a dense one.
    """
    gradient = parameter.grad
    if gradient is None or not gradient.is_sparse or optimizer.sparse_as_dense:
        return []
    parts = {"indices": gradient._indices(), "values": gradient._values()}
    return [([f"{name}.{part}"], tensor.nbytes) for part, tensor in parts.items()]


def _when_written(path: Path) -> Sequence[Mapping[str, Any]]:
    """The timeline's events, once a thread of Horovod's has written them all."""
    deadline = time.monotonic() + WRITTEN_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, json.JSONDecodeError):
            events: Sequence[Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
            return events
        time.sleep(0.05)
    raise LaunchError(f"Horovod has not written its timeline within {WRITTEN_S:.0f} s")


def read_timeline(events: Sequence[Mapping[str, Any]]) -> list[Span]:
    """The operations of a timeline: tensors that overlap in time were fused into one."""
    start_us = next(event["args"][START] for event in events if START in event.get("args", {}))
    names = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event.get("name") == "process_name" and "name" in event["args"]
    }
    single = sorted(_operations(events, names), key=lambda span: span.begin_ns)
    fused: list[Span] = []
    for span in single:
        if fused and span.begin_ns < fused[-1].end_ns and span.name == fused[-1].name:
            last = fused[-1]
            last.length_ns = max(last.end_ns, span.end_ns) - last.begin_ns
            last.tensors += span.tensors
        else:
            fused.append(span)
    for span in fused:
        span.begin_ns += 1000 * start_us
        span.entered_ns = span.begin_ns
    return fused


def _operations(events: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> Iterator[Span]:
    """Each tensor's operations, in nanoseconds since the timeline began."""
    open_: dict[int, list[tuple[str, float]]] = {}
    for event in events:
        open_spans = open_.setdefault(event.get("pid", 0), [])
        if event.get("ph") == "B":
            open_spans.append((event["name"], event["ts"]))
        elif event.get("ph") == "E" and open_spans:
            name, begin_us = open_spans.pop()
            if OPERATION.match(name):
                tensor = names.get(event["pid"], "").partition(".")[2]
                yield Span(
                    row="exchange",
                    name=f"horovod:{name.lower()}",
                    tensors=[tensor],
                    begin_ns=int(1e3 * begin_us),
                    length_ns=int(1e3 * (event["ts"] - begin_us)),
                )
