"""Distances of tensors from their sketches, which are linear and about as long as the tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from measurement.records.script_report import Sketch
from reports.statistics.student import Array

Tensors = Mapping[str, Sketch]
"""Sketches by the tensor's name."""
BUFFER = "buffer:"
"""How names of buffers begin in ``ScriptReport.started``."""
MOST_NAMES = 3
"""Tensors that a sentence names."""


@dataclass(frozen=True, kw_only=True)
class Sketches:
    """The sketches of several tensors of the same names, as arrays."""

    names: Sequence[str]
    arrays: Sequence[Array]

    @classmethod
    def of(cls, tensors: Tensors, names: Iterable[str]) -> Self:
        """Take those of these names."""
        kept = list(names)
        return cls(names=kept, arrays=[np.asarray(tensors[name], dtype=np.float64) for name in kept])

    def less(self, other: Sketches) -> Sketches:
        """The difference, tensor by tensor."""
        return Sketches(names=self.names, arrays=[ours - theirs for ours, theirs in zip(self.arrays, other.arrays, strict=True)])

    def times(self, factor: float) -> Sketches:
        """Every tensor, scaled."""
        return Sketches(names=self.names, arrays=[factor * own for own in self.arrays])

    def dot(self, other: Sketches) -> float:
        """The inner product over all tensors."""
        return math.fsum(float(ours @ theirs) for ours, theirs in zip(self.arrays, other.arrays, strict=True))

    @property
    def norms(self) -> Array:
        """Length of each tensor."""
        return np.array([float(np.linalg.norm(own)) for own in self.arrays])

    @property
    def norm(self) -> float:
        """Length of all together."""
        return math.sqrt(self.dot(self))


def common_names(ours: Tensors, theirs: Tensors) -> list[str]:
    """Names of tensors that both have, with sketches of one length."""
    return [name for name in theirs if name in ours and len(ours[name]) == len(theirs[name])]


def parameters_of(tensors: Tensors) -> Tensors:
    """Those that are no buffers."""
    return {name: sketch for name, sketch in tensors.items() if not name.startswith(BUFFER)}


def share(part: float, whole: float) -> float:
    """A length relative to another; 0 of nothing, infinite of something where the other is nothing, or where it is not finite."""
    if part == 0:
        return 0.0
    return part / whole if whole > 0 and math.isfinite(part) and math.isfinite(whole) else math.inf


def farthest(distances: Mapping[str, float], *, beyond: float = 0.0) -> list[str]:
    """The names whose distance is beyond this, the farthest first."""
    return sorted((name for name, value in distances.items() if not value <= beyond), key=lambda name: -distances[name])


def named(names: Sequence[str]) -> str:
    """Such as ``conv1.weight, fc.bias and 3 more``."""
    shown = ", ".join(names[:MOST_NAMES])
    return f"{shown} and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else shown
