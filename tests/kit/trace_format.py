"""The rules of the trace-event format, as far as our files use it: what is wrong with a file, a
line each."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict

KINDS = {"X", "M", "s", "f"}
METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def read(path):
    """A file's events."""
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def row_of(event):
    return event["pid"], event["tid"]


def slices(events, *, row):
    """Slices of the rows whose name begins so."""
    rows = {
        row_of(one)
        for one in events
        if one["name"] == "thread_name" and one["args"]["name"].startswith(row)
    }
    return [one for one in events if one["ph"] == "X" and row_of(one) in rows]


def faults(events):
    """Unknown kinds, rows without a name, slices that cross, arrows without two ends or of which
    one is in no slice."""
    found = [
        f"unknown: {one}"
        for one in events
        if one["ph"] not in KINDS or (one["ph"] == "M" and one["name"] not in METADATA)
    ]
    processes = {one["pid"] for one in events if one["name"] == "process_name"}
    names = Counter(row_of(one) for one in events if one["name"] == "thread_name")
    timed = [one for one in events if one["ph"] != "M"]
    found += [f"time of {one}" for one in timed if not one["ts"] >= 0 or one.get("dur", 0) < 0]
    found += [
        f"row without a name: {one}"
        for one in timed
        if names[row_of(one)] != 1 or one["pid"] not in processes
    ]
    spans, arrows = defaultdict(list), defaultdict(list)
    for one in sorted(timed, key=lambda one: (one["ts"], -one.get("dur", 0))):
        if one["ph"] == "X":
            spans[row_of(one)].append(
                (round(1e3 * one["ts"]), round(1e3 * (one["ts"] + one["dur"])))
            )
        elif "id" in one:
            arrows[one["id"]].append(one)
    for row, own in spans.items():
        ends = []  # of the slices that are open
        for begin, end in own:
            ends = [other for other in ends if other > begin]
            found += [f"{row}: {begin} to {end} crosses another" for other in ends if other < end]
            ends.append(end)
    for own in arrows.values():
        touches = [
            any(begin - 1 <= 1e3 * one["ts"] <= end + 1 for begin, end in spans[row_of(one)])
            for one in own
        ]
        if sorted(one["ph"] for one in own) != ["f", "s"] or not all(touches):
            found.append(f"a loose arrow: {own}")
    return found
