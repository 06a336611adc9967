"""Converts the traces of ranks into spans on the driver's clock, and into a file for Perfetto.

The format: "Trace Event Format" (Google). Slices of a row nest, and every row has a
name.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from measurement.records.record import Span
from runners.protocol import TraceReply

TRAINING, EXCHANGE = "training thread", "exchange"
"""Rows, as viewers name them."""


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
