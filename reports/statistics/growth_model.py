"""How a rank's time for a sample grows with the number of hosts: a few terms with priors, and what
measured sizes leave of them.

The time of h hosts is ``level × (1 + step [h > 1] + exchange × growth(h) + straggle × log2 h)``:

- ``step``: what it costs to leave one host. It is a term of its own, so that no growth is read off
  the boundary of one host.
- ``exchange``: grows with each doubling of hosts by ``share`` times what the doubling before added.
  A share near 0 holds the efficiency, 1/2 is a ring's (h - 1) / h, 1 a tree's log2 h, and 2 a part
  that more hosts do not shorten.
- ``straggle``: a little more waiting for the slowest with each doubling.

Measured times vary by ``noise``, in logarithms, which grows with hosts. All five are unknown. Every
cell of a grid over them is weighted by its prior and by how well it predicts the measured sizes;
the level is integrated out. A prediction is the mixture of all cells, so that its interval holds
both the noise and that the forms disagree. The priors are round figures, chosen on published series
(docs/projection.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special
from scipy.optimize import brentq

Array = npt.NDArray[np.float64]
STEPS = np.concatenate([[0.0], np.geomspace(0.003, 4, 24)])
EXCHANGES = np.concatenate([[0.0], np.geomspace(0.003, 4, 36)])
SHARES = np.array([0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0])
STRAGGLES = np.array([0.0, 0.005, 0.01, 0.02, 0.03, 0.045, 0.07])
NOISES = np.array([0.001, 0.004, 0.008, 0.016, 0.032])
"""Standard deviation of the logarithm of one figure, on one host."""
NOISE_PRIOR = np.array([0.1, 1.0, 1.0, 1.0, 1.0])
"""Published figures vary by 0.4% and more; less has to be seen in many sizes that fit exactly."""
NOISE_GROWTH = 0.3
"""How much of the noise of one host each doubling adds."""
NEGLIGIBLE = 1e-4
"""Cells are left out whose weight is below this share of the largest."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """How large the terms are taken to be before anything is measured."""

    step: float = 0.3
    """Width of its half-Cauchy prior, as a share of the level."""
    exchange: float = 0.1
    straggle: float = 0.08
    """Mean of its exponential prior."""
    shares: tuple[float, ...] = (2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0)
    """Weights of ``SHARES``."""


PRIOR = Prior()


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What measured sizes leave of the terms: cells of the grid, those left out that weigh
    nothing.
    """

    cells: npt.NDArray[np.intp]
    """Positions in the flattened grid."""
    weights: Array
    """They sum to 1."""
    levels: Array
    """Mean logarithm of the level in each cell."""
    level_variances: Array
    noises: Array

    def logs(self, hosts: float) -> tuple[Array, Array]:
        """Mean and standard deviation of the logarithm of a figure at this many hosts, by cell."""
        means = self.levels + _log_terms(hosts)[self.cells]
        return means, np.sqrt(self.level_variances + (self.noises * _noise_factor(hosts)) ** 2)

    def mean(self, hosts: float) -> float:
        """Mean logarithm of a figure at this many hosts."""
        return float((self.weights * self.logs(hosts)[0]).sum())

    def quantile(self, hosts: float, share: float) -> float:
        """The logarithm below which a figure is with this probability."""
        means, spreads = self.logs(hosts)
        low, high = float((means - 8 * spreads).min()), float((means + 8 * spreads).max())

        def excess(log: float) -> float:
            return float((self.weights * special.ndtr((log - means) / spreads)).sum()) - share

        return float(brentq(excess, low, high))


def fit_growth(
    hosts: Sequence[float],
    times_s: Sequence[float],
    errors: Sequence[float] | float = 0.0,
    *,
    prior: Prior = PRIOR,
) -> Growth:
    """Weigh the terms by measured sizes.

    Args:
        hosts: of each size; a single one leaves the priors as they are.
        times_s: seconds of a rank for a sample, above 0.
        errors: standard errors of the logarithms of these, beside the noise.
        prior: of the terms.
    """
    logs, variances = np.log(times_s), np.square(errors)
    rests = logs[:, None] - np.stack([_log_terms(count) for count in hosts])  # by size and cell
    factors = np.array([_noise_factor(count) for count in hosts])
    precisions = 1 / ((NOISES[:, None] * factors) ** 2 + variances)  # by noise and size
    total_precisions = precisions.sum(axis=1, keepdims=True)
    levels = precisions @ rests / total_precisions
    squares = np.stack(
        [p @ (rests - level) ** 2 for p, level in zip(precisions, levels, strict=True)]
    )
    # The log-likelihood of each noise and cell, with the level integrated out.
    scores = -0.5 * (
        squares - np.log(precisions).sum(axis=1, keepdims=True) + np.log(total_precisions)
    )
    weights = np.exp(scores - scores.max()) * _weights(prior) * NOISE_PRIOR[:, None]
    kept = weights > NEGLIGIBLE * weights.max()
    noises, cells = np.nonzero(kept)
    return Growth(
        cells=cells,
        weights=weights[kept] / weights[kept].sum(),
        levels=levels[kept],
        level_variances=1 / total_precisions[noises, 0],
        noises=NOISES[noises],
    )


def _noise_factor(hosts: float) -> float:
    return 1 + NOISE_GROWTH * math.log2(hosts)


@lru_cache(maxsize=64)
def _log_terms(hosts: float) -> Array:
    """Logarithm of the time over the level, by cell."""
    doublings = math.log2(hosts)
    growth = np.array(
        [doublings if share == 1 else (1 - share**doublings) / (1 - share) for share in SHARES]
    )
    step = (STEPS * (hosts > 1))[:, None, None, None]
    exchange = EXCHANGES[None, :, None, None] * growth[None, None, :, None]
    return np.asarray(
        np.log1p(step + exchange + (STRAGGLES * doublings)[None, None, None, :])
    ).ravel()


@lru_cache(maxsize=8)
def _weights(prior: Prior) -> Array:
    """Probability of each cell before anything is measured."""
    # Distribution functions at the edges of the cells: half-Cauchy, and exponential.
    step, exchange = (
        2 / math.pi * np.arctan(_edges(g) / s)
        for g, s in ((STEPS, prior.step), (EXCHANGES, prior.exchange))
    )
    straggle = -np.expm1(-_edges(STRAGGLES) / prior.straggle)
    parts = [np.diff(step), np.diff(exchange), np.array(prior.shares), np.diff(straggle)]
    step_weights, two, three, four = (part / part.sum() for part in parts)
    return np.asarray(np.einsum("i,j,k,l->ijkl", step_weights, two, three, four)).ravel()


def _edges(grid: Array) -> Array:
    return np.concatenate([[0.0], (grid[1:] + grid[:-1]) / 2, [1.1 * grid[-1]]])
