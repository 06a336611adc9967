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
        row_of(event)
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"].startswith(row)
    }
    return [event for event in events if event["ph"] == "X" and row_of(event) in rows]


def faults(events):
    """Unknown kinds, rows without a name, slices that cross, arrows without two ends or of which
    one is in no slice."""
    wrong = [
        f"unknown: {event}"
        for event in events
        if event["ph"] not in KINDS or (event["ph"] == "M" and event["name"] not in METADATA)
    ]
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    names = Counter(row_of(event) for event in events if event["name"] == "thread_name")
    timed = [event for event in events if event["ph"] != "M"]
    wrong += [
        f"time of {event}" for event in timed if not event["ts"] >= 0 or event.get("dur", 0) < 0
    ]
    wrong += [
        f"row without a name: {event}"
        for event in timed
        if names[row_of(event)] != 1 or event["pid"] not in processes
    ]
    spans, arrows = defaultdict(list), defaultdict(list)
    for event in sorted(timed, key=lambda event: (event["ts"], -event.get("dur", 0))):
        if event["ph"] == "X":
            spans[row_of(event)].append(
                (round(1e3 * event["ts"]), round(1e3 * (event["ts"] + event["dur"])))
            )
        elif "id" in event:
            arrows[event["id"]].append(event)
    for row, events_of in spans.items():
        ends = []  # of the slices that are open
        for begin, end in events_of:
            ends = [other for other in ends if other > begin]
            wrong += [f"{row}: {begin} to {end} crosses another" for other in ends if other < end]
            ends.append(end)
    for events_of in arrows.values():
        touches = [
            any(begin - 1 <= 1e3 * event["ts"] <= end + 1 for begin, end in spans[row_of(event)])
            for event in events_of
        ]
        if sorted(event["ph"] for event in events_of) != ["f", "s"] or not all(touches):
            wrong.append(f"a loose arrow: {events_of}")
    return wrong
