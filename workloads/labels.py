"""Checks labels when they are read. Otherwise the loss would fail on a wrong one inside a kernel, without naming the file."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from measurement.errors import PlanError


def check_labels(labels: Tensor, path: Path, *, num_classes: int) -> None:
    """Require that all labels are from 0 to ``num_classes`` - 1.

    Raises:
        PlanError: one is not. The message names the first one and its place.
    """
    wrong = ((labels < 0) | (labels >= num_classes)).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise PlanError(
            f"'{path}' holds label {int(labels[first])} at place {first} ({len(wrong)} of {len(labels)} are out of range); "
            f"labels are 0 to {num_classes - 1}"
        )
