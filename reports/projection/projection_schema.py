"""The models of ``projection.json``: what is projected, what it was projected from, and where and why it is not."""

from __future__ import annotations

from typing import Literal

from reports.estimate import Estimate, Stored

SCHEMA_VERSION = 1
"""Version of projection.json. It grows when a key changes its meaning or goes."""
CONFIDENCE = 0.9


class Prediction(Stored):
    """One size that was not measured, or that was left out on purpose."""

    ranks: int
    hosts: int
    samples_per_s: Estimate
    """Bounds are a prediction interval: where one launch is expected."""
    efficiency: Estimate
    """Throughput of a rank over that with ``efficiency_of`` ranks."""
    hold: float
    """The yardstick: the efficiency of the largest size used stays."""
    ring: float
    """The yardstick: time grows by (hosts - 1) / hosts, by least squares through all sizes used."""
    measured: float | None = None
    """What was measured there, if it was."""


class BackCheck(Stored):
    """The largest size used, predicted from the smaller ones."""

    ranks: int
    from_ranks: list[int]
    samples_per_s: Estimate
    measured: float
    holds: bool
    """Whether the interval holds what was measured."""


class SeriesProjection(Stored):
    """One series: predictions, or why there are none."""

    series: str
    ranks_per_host: int
    used: list[int]
    """Sizes that it rests on: one whole host, and those of several."""
    efficiency_of: int
    check: BackCheck | None = None
    """Null where the smaller sizes alone are too few."""
    predictions: list[Prediction] = []
    refusal: str | None = None
    """Why there is no prediction, and what to measure."""


class RatioPrediction(Stored):
    """Throughput of one arm over that of another, at a size that was not measured."""

    candidate: str
    baseline: str
    ranks: int
    ratio: Estimate


class Projection(Stored):
    """All that was projected at once."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["projection"] = "projection"
    source: str
    confidence: float = CONFIDENCE
    to: list[int]
    series: list[SeriesProjection]
    ratios: list[RatioPrediction] = []
