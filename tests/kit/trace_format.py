"""The rules of the trace-event format, as far as our files use it: what is wrong with a file, a line each."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

KINDS = {"X", "M", "s", "f"}
METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def read(path: Path) -> list[dict[str, Any]]:
    """A file's events."""
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def slices(events: Sequence[dict[str, Any]], *, row: str) -> list[dict[str, Any]]:
    """Slices of the rows whose name begins so."""
    rows = {(one["pid"], one["tid"]) for one in events if one["name"] == "thread_name" and one["args"]["name"].startswith(row)}
    return [one for one in events if one["ph"] == "X" and (one["pid"], one["tid"]) in rows]


def faults(events: Sequence[dict[str, Any]]) -> list[str]:
    """Unknown kinds, missing keys, rows without a name, slices that cross, arrows without two ends or that begin in no slice."""
    found = [f"kind {one['ph']}" for one in events if one["ph"] not in KINDS]
    found += [f"metadata {one['name']}" for one in events if one["ph"] == "M" and one["name"] not in METADATA]
    found += [f"not whole: {one}" for one in events if not isinstance(one.get("pid"), int) or not isinstance(one.get("tid"), int)]
    timed = [one for one in events if one["ph"] != "M"]
    found += [f"time of {one}" for one in timed if not one["ts"] >= 0 or one.get("dur", 0) < 0]
    processes = {one["pid"] for one in events if one["name"] == "process_name"}
    names = Counter((one["pid"], one["tid"]) for one in events if one["name"] == "thread_name")
    found += [f"row {row} has {number} names" for row, number in names.items() if number != 1]
    found += [f"row of no name: {one}" for one in timed if (one["pid"], one["tid"]) not in names or one["pid"] not in processes]
    return [*found, *_crossing(timed), *_loose(timed)]


def _crossing(timed: Sequence[dict[str, Any]]) -> Iterator[str]:
    open_: dict[tuple[int, int], list[int]] = {}
    own = sorted((one for one in timed if one["ph"] == "X"), key=lambda one: (one["ts"], -one["dur"]))
    for one in own:
        begin, end = round(1e3 * one["ts"]), round(1e3 * (one["ts"] + one["dur"]))
        ends = open_.setdefault((one["pid"], one["tid"]), [])
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends and end > ends[-1]:
            yield f"crosses another: {one}"
        ends.append(end)


def _loose(timed: Sequence[dict[str, Any]]) -> Iterator[str]:
    ends: dict[int, list[dict[str, Any]]] = {}
    for one in timed:
        if one["ph"] in ("s", "f"):
            ends.setdefault(one["id"], []).append(one)
    for number, own in ends.items():
        if sorted(one["ph"] for one in own) != ["f", "s"]:
            yield f"arrow {number} has ends {[one['ph'] for one in own]}"
        for one in own:
            place = (one["pid"], one["tid"])
            if not any(
                (other["pid"], other["tid"]) == place and other["ts"] - 1e-3 <= one["ts"] <= other["ts"] + other["dur"] + 1e-3
                for other in timed
                if other["ph"] == "X"
            ):
                yield f"arrow {number} touches no slice"
