"""The table of arms that trained to the end."""

from __future__ import annotations

from reports.tables.table import Column, Entry, Row, Table, texts
from reports.training_schema import ArmTraining, TrainingSummary
from reports.wording.formatting import NARROW_TO, NONE, accuracy_interval, percent, points, seconds, time_ratio


def training_table(training: TrainingSummary) -> Table:
    """One row per arm, in the plan's order; with times to accuracy where the plan has a target."""
    target = training.settings.target_accuracy
    columns = [
        Column(name="arm", title="arm"),
        Column(name="accuracy", title="accuracy", wraps=True),
        Column(name="difference", title=f"points from {training.reference}", wraps=True),
        Column(name="convergence", title="convergence", wraps=True),
    ]
    if target is not None:
        columns += [
            Column(name="time", title=f"{percent(target)} after", wraps=True),
            Column(name="reached", title="reached", wraps=True),
            Column(name="time_ratio", title=f"time / {training.baseline}'s", wraps=True),
        ]
    return Table(columns=columns, rows=[_row(arm, training) for arm in training.arms])


def _row(arm: ArmTraining, training: TrainingSummary) -> Row:
    """Besides the columns' entries there is a ``note``, which a format may show with the arm's name."""
    is_baseline = arm.name == training.baseline
    relative = Entry(text=time_ratio(arm.time_ratio), short=time_ratio(arm.time_ratio, to=NARROW_TO))
    return Row(
        entries={
            **texts(arm=arm.name, accuracy=accuracy_interval(arm.final_top1), difference=points(arm.difference)),
            "convergence": _convergence(arm, training),
            **texts(time=seconds(arm.time_to_accuracy_s), reached=f"{arm.seeds_reached} of {arm.seeds}"),
            "time_ratio": Entry(text="1") if is_baseline else relative,
            "note": Entry(text=arm.note or ""),
        }
    )


def _convergence(arm: ArmTraining, training: TrainingSummary) -> Entry:
    if arm.name == training.reference:
        return Entry(text="reference", kind="reference")
    return Entry(text=arm.convergence, kind=arm.convergence) if arm.convergence else Entry(text=NONE)
