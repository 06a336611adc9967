"""How far two arms are apart: at the start, in the gradients of the first step, and after each step. Pure.

Arms that begin alike and take the same batches differ by rounding alone, as sums have another order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from measurement.judging.distances import Arithmetic, Array, Sketches, rounding_of, share, shares

PROPORTIONAL = 0.02
"""Gradients that differ by a factor alone leave less than this share besides."""
SMALL_CHANGE, SMALL_CHANGE_TRIED = 0.1, 1e-3
"""A tensor that steps change less, beside a usual one of its size, counts as changed by this share of that: later steps multiply
what is rounding in it. Where it was tried out what they make of rounding, far less is seen."""


@dataclass(frozen=True, kw_only=True)
class Distances:
    """How far tensors are apart, relative to their size, or to what steps changed in them."""

    names: Sequence[str]
    distances: Array
    """Each tensor's."""
    distance: float
    """That of all together."""
    roundings: Array | float = 0.0
    """What rounding alone may make of each one's distance, besides what tolerances are for."""
    rounding: float = 0.0
    """And of that of all."""

    @property
    def excess(self) -> dict[str, float]:
        """By name: how far each is apart, without what rounding it may make."""
        return dict(zip(self.names, np.maximum(self.distances - self.roundings, 0.0).tolist(), strict=True))

    @property
    def worst(self) -> float:
        """The largest excess."""
        return max(self.excess.values(), default=0.0)

    def beyond(self, tolerance: float) -> list[str]:
        """The tensors whose excess is larger, the farthest first."""
        excess = self.excess
        return sorted((name for name, value in excess.items() if not value <= tolerance), key=lambda name: -excess[name])

    def is_beyond(self, tolerance: float, single: float) -> bool:
        """Whether all together are farther apart than ``tolerance``, or one of them than ``single``."""
        return not (self.distance <= tolerance + self.rounding and self.worst <= single)


def start_apart(ours: Sketches, theirs: Sketches) -> Distances:
    """Hold what arms start with against each other, relative to the larger of both."""
    between, lengths = ours - theirs, np.fmax(ours.norms, theirs.norms)
    distance = share(between.norm, max(ours.norm, theirs.norm))
    return Distances(names=ours.names, distances=shares(between.norms, lengths), distance=distance)


def gradients_apart(ours: Sketches, theirs: Sketches, sizes: Mapping[str, int], arithmetic: Arithmetic) -> Distances:
    """Hold gradients against the reference's, relative to the larger of both."""
    between, rounding = ours - theirs, rounding_of(theirs, sizes, arithmetic)
    lengths = np.fmax(np.fmax(ours.norms, theirs.norms), rounding)
    return Distances(
        names=ours.names,
        distances=shares(between.norms, lengths),
        distance=share(between.norm, theirs.norm),
        roundings=shares(rounding, lengths),
    )


def gradient_factor(ours: Sketches, theirs: Sketches) -> float | None:
    """How many times as large gradients are, where they are the same up to this factor; None where they are not."""
    squares = theirs @ theirs
    if not squares or not math.isfinite(squares):
        return None
    factor = (ours @ theirs) / squares
    return factor if share((ours - factor * theirs).norm, ours.norm) <= PROPORTIONAL else None


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Tensors before and after some steps, of the same names."""

    start: Sketches
    end: Sketches

    @property
    def change(self) -> Sketches:
        """What the steps changed."""
        return self.end - self.start


def steps_apart(
    ours: Moved, theirs: Moved, sizes: Mapping[str, int], *, steps: int, stored: Arithmetic, tried: Collection[str] = ()
) -> Distances:
    """Hold what ``steps`` made of tensors against the reference's, relative to what they changed.

    Where steps change a tensor less than the last place of its numbers, as in a warm-up of the learning rate or in bfloat16, few
    elements move, and by a whole place. Steps that differ by a share then move others: tensors are apart by the root of that share.

    Args:
        ours: after the steps, of one arm.
        theirs: the reference's.
        sizes: elements, by name.
        steps: how many were taken.
        stored: in what the tensors are kept.
        tried: names of tensors of which it is known what steps make of rounding.
    """
    mine, its = ours.change, theirs.change
    larger = mine if mine.norm > its.norm else its
    small = np.array([SMALL_CHANGE_TRIED if name in tried else SMALL_CHANGE for name in larger.names])
    lengths = np.fmax(np.fmax(mine.norms, its.norms), small * larger.usual(sizes))
    between, last_places = ours.end - theirs.end, stored.epsilon * math.sqrt(steps)
    most = math.sqrt(stored.recomputed)
    return Distances(
        names=larger.names,
        distances=shares(between.norms, lengths),
        distance=share(between.norm, larger.norm),
        roundings=np.fmin(shares(last_places * theirs.end.norms, lengths), most),
        rounding=min(share(last_places * theirs.end.norm, larger.norm), most),
    )
