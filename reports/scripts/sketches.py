"""Distances of tensors from their sketches, which are linear and about as long as the tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from measurement.records.script_report import ScriptReport, Sketch
from reports.statistics.student import Array

Tensors = Mapping[str, Sketch]
"""Sketches by the tensor's name."""
BUFFER = "buffer:"
"""How names of buffers begin in ``ScriptReport.started``."""
SIZE = 16
"""Numbers of a sketch, at most."""
MOST_NAMES = 3
"""Tensors that a sentence names."""


@dataclass(frozen=True, kw_only=True)
class Sketches:
    """The sketches of several tensors."""

    names: Sequence[str]
    table: Array
    """float64 [names, SIZE]; sketches that are shorter end with zeros."""

    @classmethod
    def of(cls, tensors: Tensors, names: Iterable[str]) -> Self:
        """Take those of these names."""
        kept = list(names)
        rows = [[*tensors[name], *[0.0] * (SIZE - len(tensors[name]))] for name in kept]
        return cls(names=kept, table=np.array(rows, dtype=np.float64).reshape(len(kept), SIZE))

    def less(self, other: Sketches) -> Sketches:
        """The difference, tensor by tensor."""
        return Sketches(names=self.names, table=self.table - other.table)

    def times(self, factor: float) -> Sketches:
        """Every tensor, scaled."""
        return Sketches(names=self.names, table=factor * self.table)

    def dot(self, other: Sketches) -> float:
        """The inner product over all tensors."""
        return float((self.table * other.table).sum())

    @property
    def norms(self) -> Array:
        """Length of each tensor."""
        return np.asarray(np.sqrt((self.table**2).sum(axis=1)))

    @property
    def norm(self) -> float:
        """Length of all together."""
        return math.sqrt(self.dot(self))

    def shares(self, lengths: Array) -> dict[str, float]:
        """Each tensor's length relative to another, by name."""
        return {name: share(own, whole) for name, own, whole in zip(self.names, self.norms, lengths, strict=True)}


def common_names(ours: Tensors, theirs: Tensors) -> list[str]:
    """Names of tensors that both have, with sketches of one length."""
    return [name for name in theirs if name in ours and len(ours[name]) == len(theirs[name])]


def first_gradients(ours: ScriptReport, theirs: ScriptReport) -> tuple[Sketches, Sketches]:
    """Those of the first step that both have; none where one of the two took no step."""
    mine, its = (report.steps[0].gradients if report.steps else {} for report in (ours, theirs))
    names = common_names(mine, its)
    return Sketches.of(mine, names), Sketches.of(its, names)


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
