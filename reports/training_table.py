"""Arms that trained to the end as rows of words, for the terminal, for Markdown and for the page."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from reports.quantities import NONE, percent
from reports.training_quantities import accuracy_interval, points, seconds, time_ratio
from reports.training_schema import ArmTraining, TrainingSummary

STYLES = {"same": "bold green", "differs": "bold red", "undecided": "yellow"}


def training_header(training: TrainingSummary) -> list[str]:
    """Of ``training_rows``."""
    target = training.settings.target_accuracy
    columns = ["arm", "accuracy", f"points from {training.reference}", "convergence"]
    return columns if target is None else [*columns, f"{percent(target)} after", "reached", f"time / {training.baseline}'s"]


def training_rows(training: TrainingSummary) -> list[list[str]]:
    """One row per arm, in the plan's order."""
    return [_row(arm, training) for arm in training.arms]


def _row(arm: ArmTraining, training: TrainingSummary) -> list[str]:
    row = [arm.name, accuracy_interval(arm.final_top1), points(arm.difference), verdict(arm, training)]
    if training.settings.target_accuracy is None:
        return row
    relative = "1" if arm.name == training.baseline else time_ratio(arm.time_ratio)
    return [*row, seconds(arm.time_to_accuracy_s), f"{arm.seeds_reached} of {arm.seeds}", relative]


def verdict(arm: ArmTraining, training: TrainingSummary) -> str:
    """The word on an arm's convergence."""
    return "reference" if arm.name == training.reference else arm.convergence or NONE


def training_table(training: TrainingSummary) -> Table:
    """For the terminal."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for title in training_header(training):
        table.add_column(Text(title), no_wrap=title == "arm")
    for row in training_rows(training):
        table.add_row(*(Text(cell.replace(" to ", "–"), style=STYLES.get(cell, "")) for cell in row))
    return table
