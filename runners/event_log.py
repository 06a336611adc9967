"""TensorBoard's event files, written during a run. One folder is one run.

TensorBoard's step is an optimizer step for ``loss/step`` and ``learning_rate``, else the number of
finished epochs (or, in plans without ``training``, rounds). Every call writes to the file at once,
so a run can be watched, and a killed run leaves its figures. The figures are those of the reports,
for one round or epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from measurement.plans.settings import EpochRecord, Quantity
from measurement.records.block import BlockRecord
from measurement.records.step_tables import steps_of
from reports.conclusions.step_terms import data_wait_share, terms_by_launch
from reports.conclusions.steps import Steps, tabulate_blocks, throughput_per_s

EVENT_FILES = "events.out.tfevents.*"
TAGS: Mapping[Quantity, str] = {
    "train_loss": "loss/train",
    "train_top1": "accuracy/train_top1",
    "train_top5": "accuracy/train_top5",
    "held_out_loss": "loss/held_out",
    "held_out_top1": "accuracy/held_out_top1",
    "held_out_top5": "accuracy/held_out_top5",
}
"""Tags of an epoch's figures; TensorBoard groups by the first part."""


class TensorboardLog:
    """The event files of one run; on the driver, or on rank 0."""

    def __init__(self, folder: Path, *, sample_unit: str) -> None:
        # Where TensorFlow is installed, importing this takes seconds.
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))
        self._throughput = f"throughput/{sample_unit}_per_s"

    def epoch(self, record: EpochRecord, block: BlockRecord) -> None:
        """Write the figures of a finished epoch; both arguments are of all ranks."""
        first = record.epoch * record.steps
        for step, loss in enumerate(record.step_losses, start=first):
            self._writer.add_scalar("loss/step", loss, step)
        for step, rate in zip(
            (first, first + record.steps - 1), record.learning_rates, strict=True
        ):
            self._writer.add_scalar("learning_rate", rate, step)
        figures = {TAGS[name]: value for name, value in record.figures().items() if name in TAGS}
        self._add(figures | self._timing(Steps.of(_steps([block]))), record.epoch + 1)

    def rounds(self, blocks: Sequence[BlockRecord]) -> None:
        """Write every round of a finished launch without training.

        ``blocks``: all of one arm, at least one.
        """
        steps = _steps(blocks)
        for number, raw in steps.groupby("round"):
            round_steps = Steps.of(raw)
            figures = self._timing(round_steps.where(kind="sync"))
            terms = terms_by_launch(round_steps, None)
            if len(terms):
                figures["exposed_exchange/s"] = float(terms["exposed_exchange"].iloc[0])
            self._add(figures, int(str(number)) + 1)

    def close(self) -> None:
        """Close the file; nothing more can be written."""
        self._writer.close()

    def _timing(self, sync: Steps) -> dict[str, float]:
        """Return the figures of the synchronised steps of a round or epoch."""
        if not len(sync):
            return {}
        return {
            self._throughput: throughput_per_s(tabulate_blocks(sync)),
            "step_time/median_s": float(sync.slowest["step_s"].median()),
            "data_wait/share": data_wait_share(sync.rank_blocks),
        }

    def _add(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


def _steps(blocks: Sequence[BlockRecord]) -> pd.DataFrame:
    """The raw steps of one arm in one launch, as ``reports.conclusions`` reads them."""
    return steps_of(blocks).assign(launch=0, arm="")
