"""Whether arms that ran one at a time come out as interleaved ones do. Arrays in, numbers out.

Interleaving cancels the drift of a machine, and may bias by itself. So some launches run their arms one at a time. These are
unpaired: an arm's level is the logarithm of its throughput in a launch, and the ratio one at a time is a difference of mean levels.

How much such levels vary is told twice. The launches one at a time tell it themselves, by few degrees of freedom. All launches
together tell it with more: interleaved levels have the drift between launches, too. As elsewhere the wider interval holds. Its
degrees of freedom, with those of the interleaved ratio, are Satterthwaite's (Biometrics Bulletin 2, 1946).

``benchmarks/interval_coverage.py --only alone`` shows how often two ways that agree are said to contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.estimate import Estimate
from reports.schema import AloneFigures
from reports.statistics.budget import FEWEST_ALONE
from reports.statistics.student import Array, around, student_t


@dataclass(frozen=True, kw_only=True)
class Interleaved:
    """A candidate's interleaved log-ratio."""

    centre: float
    error: float
    """Its standard error."""
    degrees: float


def cross_check(
    alone: Array, interleaved: Array, ratios: Sequence[Interleaved | None], *, confidence: float
) -> list[AloneFigures | None]:
    """Hold each candidate's ratio one at a time against its interleaved one.

    Args:
        alone: float64 [launches, arms], levels one at a time, the baseline's first, then the candidates'; NaN: none.
        interleaved: those of interleaved launches.
        ratios: of the candidates.
        confidence: with which all intervals hold at once (Šidák).

    Returns:
        None for a candidate without a level, or without an interleaved interval.
    """
    variances = _variances(alone, interleaved)
    pairs = alone[:, 1:] - alone[:, :1]
    each = confidence ** (1 / max(len(ratios), 1))
    found: list[AloneFigures | None] = []
    for levels, ratio in zip(pairs.T, ratios, strict=True):
        known = levels[np.isfinite(levels)]
        if not len(known) or ratio is None:
            found.append(None)
            continue
        centre = float(known.mean())
        exact = Interleaved(centre=0.0, error=0.0, degrees=1.0)
        own, apart = (_half(variances, len(known), other, each=each) for other in (exact, ratio))
        difference = _estimate(centre - ratio.centre, apart)
        contradicts = len(known) >= FEWEST_ALONE and difference.excludes(1.0)
        found.append(AloneFigures(ratio=_estimate(centre, own), apart=difference, launches=len(known), contradicts=contradicts))
    return found


def _variances(alone: Array, interleaved: Array) -> list[tuple[float, float]]:
    """The variance of a level between launches and its degrees of freedom: by launches one at a time, and by all together."""
    squares, degrees = _squares(alone)
    more_squares, more_degrees = _squares(interleaved)
    arms = interleaved.shape[1]
    shared = more_degrees / arms  # arms that are up together drift together
    both = degrees + shared
    return [
        *([(squares / degrees, degrees)] if degrees else []),
        *([((squares + more_squares / arms) / both, both)] if shared else []),
    ]


def _squares(levels: Array) -> tuple[float, float]:
    """Squared deviations from each arm's mean, and their degrees of freedom."""
    columns = [column[np.isfinite(column)] for column in levels.T]
    known = [column for column in columns if len(column)]
    return sum(float(((one - one.mean()) ** 2).sum()) for one in known), float(sum(len(one) - 1 for one in known))


def _half(variances: Sequence[tuple[float, float]], launches: int, other: Interleaved, *, each: float) -> float | None:
    """Half the width of the wider interval on a difference of levels, less another log-ratio."""
    halves = []
    for variance, freedom in variances:
        own = 2 * variance / launches
        whole = own + other.error**2
        degrees = whole**2 / (own**2 / freedom + other.error**4 / other.degrees) if whole else freedom
        halves.append(student_t(each, degrees) * math.sqrt(whole))
    return max(halves, default=None)


def _estimate(centre: float, half: float | None) -> Estimate:
    low, high = around(centre, half)
    return Estimate(value=math.exp(centre), ci_low=low, ci_high=high)
