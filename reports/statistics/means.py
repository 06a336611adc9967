"""The mean over launches, each of which counts alike, with Student's t interval."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy import special

from reports.estimate import Estimate


def mean_interval(values: Iterable[float], *, confidence: float) -> Estimate:
    """The mean of at least one value; without bounds where there is only one."""
    found = np.asarray(list(values), dtype=np.float64)
    mean = float(found.mean())
    if len(found) < 2:
        return Estimate(value=mean)
    half = float(special.stdtrit(len(found) - 1, (1 + confidence) / 2)) * float(found.std(ddof=1)) / math.sqrt(len(found))
    return Estimate(value=mean, ci_low=mean - half, ci_high=mean + half)
