"""Judges whether ranks have drifted apart in the steps that they took together. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from measurement.errors import shortened
from runners.protocol.messages import DriftReport

TOLERANCE = 1e-3
"""Relative; ranks that add up alike are apart by less than 1e-5, whatever the number of steps."""
REMEDY = "every rank must take the same steps, so no schedule may follow a rank's own loss or batches"
LEARNING_RATE = "lr"
"""The name that PyTorch's optimizers have for it."""


def drift_between(reports: Sequence[DriftReport | None]) -> str | None:
    """Say how ranks have drifted apart, if they have and can be compared; reports by rank, None of one that trains nothing."""
    known = [report for report in reports if report is not None]
    found = [*_hyperparameters(known), *_parameters(known)] if len(known) > 1 else []
    return f"ranks have drifted apart: {'; '.join(found)} ({REMEDY})" if found else None


def _hyperparameters(reports: Sequence[DriftReport]) -> Iterator[str]:
    for name, values in reports[0].hyperparameters.items():
        ranks = zip(*(report.hyperparameters.get(name, values) for report in reports), strict=False)
        different = next((each for each in ranks if not np.allclose(each, each[0], rtol=TOLERANCE, atol=0, equal_nan=True)), None)
        if different:
            what = "learning rates" if name == LEARNING_RATE else name
            yield f"{what} {', '.join(f'{one:g}' for one in dict.fromkeys(different))}"


def _parameters(reports: Sequence[DriftReport]) -> Iterator[str]:
    apart = {
        name: max(_distance(report.parameters.get(name, values), values) for report in reports)
        for name, values in reports[0].parameters.items()
    }
    names = [name for name, distance in apart.items() if not distance <= TOLERANCE]
    if names:
        yield f"parameters {shortened(names)}, by up to {max(apart[name] for name in names):.2g} of their size"


def _distance(values: Sequence[float], first: Sequence[float]) -> float:
    """Relative; 0 where both are not finite alike, since a training that diverges does so on all ranks."""
    if np.array_equal(values, first, equal_nan=True):
        return 0.0
    size, apart = float(np.linalg.norm(first)), float(np.linalg.norm(np.subtract(values, first)))
    return apart / size if size > 0 and np.isfinite(apart) else float("inf")
