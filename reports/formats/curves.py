"""curves.csv: the learning curves, one row per arm, seed and epoch; of plans with training."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from reports.base import Report
from reports.schema import Comparison
from reports.training_schema import QUANTITIES, ArmTraining


class CurvesReport(Report):
    """For spreadsheets and data frames; an empty cell means that there is no such figure."""

    file_name = "curves.csv"

    def has_content(self, comparison: Comparison) -> bool:
        """Only where arms trained to the end."""
        return comparison.training is not None

    def render(self, comparison: Comparison) -> bytes:
        """UTF-8 CSV with a header row."""
        text = io.StringIO()
        columns = ["comparison_id", "arm", "seed", "launch", "finished", "epochs_done", "train_s", *QUANTITIES]
        writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n")
        writer.writeheader()
        for arm in comparison.training.arms if comparison.training else []:
            writer.writerows({"comparison_id": comparison.comparison_id, **row} for row in _rows(arm))
        return text.getvalue().encode()


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
