"""curves.csv: the learning curves, one row per arm, seed and epoch; of plans with ``training``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reports.base import Report
from reports.formats.csv_report import csv_bytes
from reports.schema import Comparison
from reports.training_schema import QUANTITIES, ArmTraining


class CurvesReport(Report):
    """For spreadsheets and data frames; an empty field means that there is no such figure."""

    file_name = "curves.csv"

    def has_content(self, comparison: Comparison) -> bool:
        return comparison.training is not None

    def render(self, comparison: Comparison) -> bytes:
        columns = ["comparison_id", "arm", "seed", "launch", "finished", "epochs_done", "train_s", *QUANTITIES]
        arms = comparison.training.arms if comparison.training else []
        return csv_bytes(columns, ({"comparison_id": comparison.comparison_id, **row} for arm in arms for row in _rows(arm)))


def _rows(arm: ArmTraining) -> Iterator[dict[str, Any]]:
    for curve in arm.by_seed:
        for epoch, train_s in enumerate(curve.train_s):
            yield {
                "arm": arm.name,
                "seed": curve.seed,
                "launch": curve.launch,
                "finished": curve.finished,
                "epochs_done": epoch + 1,
                "train_s": train_s,
                **{quantity: curve.figures[quantity][epoch] for quantity in QUANTITIES},
            }
