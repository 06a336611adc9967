"""What training takes of its loaders: how fast a rank would use samples up, were the next batch always there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from measurement.errors import RecordError
from measurement.results import ResultsFolder
from reports.blocks import read_steps, timed_steps


@dataclass(frozen=True, kw_only=True)
class TrainingNeed:
    """Of the arm that needs most."""

    arm: str
    samples_per_s: float
    """Per rank: its samples over the time of its synchronised steps less what it waited for data; of the rank for which that is
    most, since the others' steps contain waiting for the one that waits for data."""


def read_need(folder: Path, workload: str) -> TrainingNeed:
    """Of a comparison, or of a run that stood alone.

    Raises:
        RecordError: no training of this workload was timed there.
    """
    results = ResultsFolder(folder)
    records = results.records()
    if not records:
        raise RecordError(f"--against '{folder}' holds no launch record; give a folder that 'ringside compare' or a runner wrote")
    others = {record.workload for record in records} - {workload}
    if others:
        raise RecordError(f"--against '{folder}' is of workload '{others.pop()}', not '{workload}'; give one of the same workload")
    steps = timed_steps(records, read_steps(results, records))
    sync = steps[steps["kind"] == "sync"]
    if not len(sync):
        raise RecordError(f"--against '{folder}' holds no timed steps: no launch of it is ok; measure the training again")
    busy = sync.assign(busy_s=sync["step_s"] - sync["data_wait_s"]).groupby(["arm", "rank"])[["samples", "busy_s"]].sum()
    needs = busy["samples"] / busy["busy_s"]
    return TrainingNeed(arm=str(needs.groupby("arm").max().idxmax()), samples_per_s=float(needs.max()))
