"""Labels must be among the classes: a loss would fail on one that is not, deep inside a kernel, without a file's name."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from measurement.errors import PlanError


def check_labels(labels: Tensor, path: Path, *, num_classes: int) -> None:
    """All of 0 to ``num_classes`` - 1.

    Raises:
        PlanError: the first that is not, with its place.
    """
    wrong = ((labels < 0) | (labels >= num_classes)).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise PlanError(
            f"'{path}' holds label {int(labels[first])} at place {first} ({len(wrong)} of {len(labels)} are out of range); "
            f"labels are 0 to {num_classes - 1}"
        )
