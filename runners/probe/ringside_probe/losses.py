"""The values of losses, which are fetched from their device after the timed steps."""

from __future__ import annotations

import math
import sys
from typing import Any, Sequence

from .recorder import Row


def losses_of(recorder: Any) -> list[float]:
    """The values of the losses that were kept; NaN where a script has changed one since."""
    return [
        value if loss._version == version else math.nan
        for value, loss, version in zip(values_of(recorder.losses), recorder.losses, recorder.versions)
    ]


def values_of(losses: Sequence[Any]) -> list[float]:
    """Numbers of one-element tensors; those of a device are fetched at once."""
    if not losses:
        return []
    torch: Any = sys.modules["torch"]
    try:
        with torch.no_grad():
            values: list[float] = torch.stack([loss.reshape(()).double() for loss in losses]).tolist()
            return values
    except (RuntimeError, TypeError):  # on several devices, or overwritten by a CUDA graph
        return [value_of(loss) for loss in losses]


def value_of(loss: Any) -> float:
    """The number in a one-element tensor; NaN where it is gone."""
    try:
        return float(loss)
    except (RuntimeError, TypeError, ValueError):
        return math.nan


def means(rows: Sequence[Row], losses: Sequence[float]) -> list[float]:
    """Mean loss of each iteration; NaN where there was none."""
    found, begin = [], 0
    for row in rows:
        own = losses[begin : begin + row[6]]
        found.append(sum(own) / len(own) if own else math.nan)
        begin += row[6]
    return found
