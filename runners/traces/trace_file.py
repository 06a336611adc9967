"""Converts the traces of ranks into spans on the driver's clock, and into a file for Perfetto.

The format: "Trace Event Format" (Google). Slices of a row nest, arrows have unique numbers, every
row has a name.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from measurement.records.trace import Span
from runners.protocol.messages import TraceReply

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
        moved = [
            span.model_copy(
                update={
                    "rank": rank,
                    "begin_ns": span.begin_ns + shift,
                    "entered_ns": None if span.entered_ns is None else span.entered_ns + shift,
                }
            )
            for span in reply.spans
        ]
        ranks.append(TracedRank(rank=rank, spans=moved, events=events))
    return _with_operations(ranks)


def _with_operations(ranks: Sequence[TracedRank]) -> list[TracedRank]:
    """Give every rank the operations that rank 0 alone noted, each from when the rank submitted the
    last of its tensors.
    """
    operations = [
        span
        for rank in ranks
        for span in rank.spans
        if _is_noted(span) and span.name != "submitted"
    ]
    if not operations:
        return list(ranks)
    completed = []
    for rank in ranks:
        submitted: dict[str, list[Span]] = {}
        for span in rank.spans:
            if span.name == "submitted":
                submitted.setdefault(span.tensors[0], []).append(span)
        other_spans = [span for span in rank.spans if not _is_noted(span)]
        completed.append(
            replace(
                rank,
                spans=other_spans + list(_operations_of_rank(operations, submitted, rank.rank)),
            )
        )
    return completed


def _is_noted(span: Span) -> bool:
    """Whether a library noted it for the exchange of named tensors."""
    return span.row == "exchange" and bool(span.tensors)


def _operations_of_rank(
    operations: Iterable[Span], submitted: Mapping[str, list[Span]], rank: int
) -> Iterator[Span]:
    for operation in sorted(operations, key=lambda operation: operation.begin_ns):
        parts = [
            submitted[name].pop(0)
            for name in dict.fromkeys(operation.tensors)
            if submitted.get(name)
        ]
        if parts:
            begin_ns = min(max(part.begin_ns for part in parts), operation.begin_ns)
            size = sum(part.num_bytes or 0 for part in parts)
            times = {"begin_ns": begin_ns, "length_ns": operation.end_ns - begin_ns}
            yield operation.model_copy(update={"rank": rank, "num_bytes": size, **times})


def perfetto_file(ranks: Sequence[TracedRank]) -> bytes:
    """The file of an arm: compressed JSON, with times from 0."""
    begins = [span.begin_ns for rank in ranks for span in rank.spans]
    zero_ns = min([*begins, *(event["ts"] for rank in ranks for event in rank.events)])
    events: list[dict[str, Any]] = []
    numbers: dict[tuple[int, str, Any], int] = {}
    for rank in ranks:
        pid = rank.rank + 1
        events += _named(pid, f"rank {rank.rank}")
        events += _rows(rank, pid, zero_ns, numbers)
    return gzip.compress(
        json.dumps(
            {"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":")
        ).encode(),
        mtime=0,
    )


def _named(pid: int, name: str, tid: int | None = None) -> list[dict[str, Any]]:
    """The name and the position of a process or a row."""
    kind, place = (
        ("process", {"pid": pid, "tid": 0}) if tid is None else ("thread", {"pid": pid, "tid": tid})
    )
    order = pid if tid is None else tid
    return [
        {"ph": "M", "name": f"{kind}_name", **place, "args": {"name": name}},
        {"ph": "M", "name": f"{kind}_sort_index", **place, "args": {"sort_index": order}},
    ]


def _rows(
    rank: TracedRank, pid: int, zero_ns: int, numbers: dict[tuple[int, str, Any], int]
) -> Iterator[dict[str, Any]]:
    """The rows of a rank: its threads, the exchange, and arrows between their slices."""
    by_row: dict[str, list[dict[str, Any]]] = {}
    for event in sorted(rank.events, key=lambda event: event["row"] != TRAINING):
        by_row.setdefault(event["row"], []).append(event)
    by_row[EXCHANGE] = [_exchange(span) for span in rank.spans if span.row == "exchange"]
    tids = itertools.count(1)
    for name, events in by_row.items():
        first_tid = 0
        for number, lane in enumerate(lanes(event for event in events if event["ph"] == "X")):
            tid = next(tids)
            first_tid = first_tid or tid
            yield from _named(pid, name if number == 0 else f"{name} ({number + 1})", tid)
            for event in lane:
                yield event | {
                    "pid": pid,
                    "tid": tid,
                    "ts": (event["ts"] - zero_ns) / 1000,
                    "dur": event["dur"] / 1000,
                }
        for event in (event for event in events if event["ph"] != "X" and first_tid):
            number = numbers.setdefault((pid, event["cat"], event["id"]), len(numbers) + 1)
            yield event | {
                "pid": pid,
                "tid": first_tid,
                "ts": (event["ts"] - zero_ns) / 1000,
                "id": number,
            }


def _exchange(span: Span) -> dict[str, Any]:
    details: dict[str, Any] = {"bytes": span.num_bytes, "tensors": span.tensors}
    args = {key: value for key, value in details.items() if value}
    what = {
        "ph": "X",
        "name": f"{span.name} {span.num_bytes or 0:,} bytes",
        "cat": EXCHANGE,
        "args": args,
    }
    return what | {"row": EXCHANGE, "ts": span.begin_ns, "dur": span.length_ns}


def lanes(slices: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Distribute slices over rows so that in each row slices follow or contain each other, as
    viewers need.
    """
    rows: list[list[dict[str, Any]]] = []
    open_: list[list[int]] = []
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        end_ns = event["ts"] + event["dur"]
        for ends in open_:
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
        place = next(
            (number for number, ends in enumerate(open_) if not ends or end_ns <= ends[-1]),
            len(rows),
        )
        if place == len(rows):
            rows.append([])
            open_.append([])
        rows[place].append(event)
        open_[place].append(end_ns)
    return rows
