"""What TensorBoard shows of a run: event files, written while it trains. One folder is one run.

A step of TensorBoard's is an optimizer step for ``loss/step`` and ``learning_rate``, else how many epochs (or, in plans without
training, rounds) were done. Every call writes through to the file, so that a run can be watched and one that is killed is kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from measurement.training import EpochRecord, Figure

Row = Mapping[str, Any]
"""A rank's step, with ``measurement.record.STEP_COLUMNS``."""
EVENT_FILES = "events.out.tfevents.*"
TAGS: Mapping[Figure, str] = {
    "train_loss": "loss/train",
    "train_top1": "accuracy/train_top1",
    "held_out_loss": "loss/held_out",
    "held_out_top1": "accuracy/held_out_top1",
    "held_out_top5": "accuracy/held_out_top5",
}
"""What an epoch's figures are called; TensorBoard groups by the first part."""


class EventLog:
    """The event files of one run; on the driver, or on rank 0."""

    def __init__(self, folder: Path, *, sample_unit: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))
        self._throughput = f"throughput/{sample_unit}_per_s"

    def epoch(self, record: EpochRecord, rows: Sequence[Row]) -> None:
        """An epoch that is done.

        Args:
            record: of all ranks.
            rows: all ranks' steps of this epoch.
        """
        first = record.epoch * record.steps
        for step, loss in enumerate(record.step_losses, start=first):
            self._writer.add_scalar("loss/step", loss, step)
        for step, rate in zip((first, first + record.steps - 1), record.learning_rates, strict=True):
            self._writer.add_scalar("learning_rate", rate, step)
        figures = {TAGS[name]: value for name, value in record.figures().items() if name in TAGS}
        self._add(figures | self._timing(rows), record.epoch + 1)

    def rounds(self, rows: Iterable[Row]) -> None:
        """A launch without training that is over: throughput and step time of every round, exposed communication where known.

        Args:
            rows: all ranks' steps of the launch.
        """
        blocks: dict[int, dict[str, list[Row]]] = {}
        for row in rows:
            blocks.setdefault(row["round"], {}).setdefault(row["kind"], []).append(row)
        for number, kinds in sorted(blocks.items()):
            figures = self._timing(kinds["sync"]) if "sync" in kinds else {}
            if {"sync", "local"} <= set(kinds):
                figures["exposed_communication/s"] = _mean_step_s(kinds["sync"]) - _mean_step_s(kinds["local"])
            self._add(figures, number + 1)

    def close(self) -> None:
        """No more will come."""
        self._writer.close()

    def _timing(self, rows: Sequence[Row]) -> dict[str, float]:
        """Of one block or epoch, in which every rank took the same number of steps."""
        if not rows:
            return {}
        by_step: dict[int, list[float]] = {}
        for row in rows:
            by_step.setdefault(row["step"], []).append(row["step_s"])
        return {
            self._throughput: sum(row["samples"] for row in rows) / _slowest_rank_s(rows),
            "step_time/median_s": statistics.median(max(ranks) for ranks in by_step.values()),
            "data_wait/share": sum(row["data_wait_s"] for row in rows) / sum(row["step_s"] for row in rows),
        }

    def _add(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


def _slowest_rank_s(rows: Sequence[Row]) -> float:
    by_rank: dict[int, float] = {}
    for row in rows:
        by_rank[row["rank"]] = by_rank.get(row["rank"], 0.0) + row["step_s"]
    return max(by_rank.values())


def _mean_step_s(rows: Sequence[Row]) -> float:
    """As the reports have it: the slowest rank's time over its steps."""
    return _slowest_rank_s(rows) / len({row["step"] for row in rows})
