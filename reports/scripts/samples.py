"""What a script's throughput counts, where its samples come from, and what a report of scripts cannot see."""

from __future__ import annotations

from collections.abc import Sequence

from measurement.records.record import LaunchRecord
from reports.script_schema import ConfigurationDifference

ITERATIONS = "iterations"
MOST_FILES = 10
"""Files of an arm that the note on them names."""
MOST_ALLOWED = 5
"""Fields that the note on allowed work names."""


def sample_unit(records: Sequence[LaunchRecord]) -> str:
    """The unit of throughput: iterations where samples of some rank of a script could not be counted."""
    if any(report.samples_from is None for record in records for report in record.scripts):
        return ITERATIONS
    return next((record.sample_unit for record in records if record.sample_unit != "samples"), "samples")


def samples_of_a_step(records: Sequence[LaunchRecord]) -> int:
    """Samples of a rank in its first step; 0 where they could not be counted."""
    counted = (report.steps[0].samples for record in records for report in record.scripts if report.steps)
    return next((samples for samples in counted if samples), 0)


def script_notes(records: Sequence[LaunchRecord], differences: Sequence[ConfigurationDifference]) -> list[str]:
    """What a reader must know of scripts: what counts as a sample, work that may differ, and what the probe could not see."""
    reports = [(record.arm, report) for record in records if record.role != "control" for report in record.scripts]
    uncounted = dict.fromkeys(arm for arm, report in reports if report.samples_from is None)
    notes = []
    if uncounted:
        notes.append(
            f"Samples of {', '.join(uncounted)} could not be counted: iterations per second are compared, which is fair only "
            "where global batches are alike; 'samples_per_step' tells them"
        )
    allowed = [one.field for one in differences if one.allowed]
    if allowed:
        notes.append(f"Work differs, and is allowed to (scripts.allow): {', '.join(allowed[:MOST_ALLOWED])}")
    unseen: dict[str, list[str]] = {}
    for arm, report in reports:
        for note in report.notes:
            unseen.setdefault(note, [])
            unseen[note] += [] if arm in unseen[note] else [arm]
    notes += [f"{', '.join(arms)}: {note.rstrip('.')}" for note, arms in unseen.items()]
    return [*notes, *written_files(records)]


def written_files(records: Sequence[LaunchRecord]) -> list[str]:
    """Which files below its folder each arm opens for writing, and what to do; no sentence where there is none."""
    found = {
        record.arm: sorted({name for report in record.scripts for name in report.written_files})[:MOST_FILES]
        for record in records
        if record.role != "control"
    }
    said = "; ".join(f"{', '.join(names)} ({arm})" for arm, names in sorted(found.items()) if names)
    note = (
        f"Opened for writing below the folder of the command: {said}. Each arm, the control and each launch starts its script "
        "again. Let it write elsewhere by a flag of its own, or start it in a copy of the folder (--directory-a, --directory-b, or "
        "directory in a plan's arm)"
    )
    return [note] if said else []
