"""How much tensors and arms differ, by sketches, and how much rounding may explain, by dtype. Pure.

A sketch is linear, and its norm is about that of its tensor (``ringside_agent.reading.values``):
with 16 places within about 35%, with 64 within about 20%. Tolerances are far wider than that. Arms
that start equal and take the same batches differ by rounding alone, since sums have another order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Tensors = Mapping[str, Sequence[float]]
"""Sketches by the tensor's name."""


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """How much results computed in a dtype may differ. All are relative L2 distances."""

    epsilon: float
    """The spacing of its numbers: the largest change of a parameter by a step's rounding."""
    gradient: float
    """One gradient, summed in another order or by another library."""
    recomputed: float
    """All gradients together, where another script computed them: kernels and casts may differ,
    too."""
    stepped: float
    """All parameters together, relative to what the first steps changed, where the effect of
    rounding was not measured."""
    negligible: float
    """× a usual gradient of its size: a smaller gradient may be rounding alone, as of a bias before
    a batch norm. Optimizers that divide by its size turn it into whole steps."""


ARITHMETICS: Mapping[str, Arithmetic] = {
    "float64": Arithmetic(
        epsilon=2.0**-52, gradient=1e-8, recomputed=1e-4, stepped=3e-3, negligible=1e-5
    ),
    "float32": Arithmetic(
        epsilon=2.0**-23, gradient=1e-4, recomputed=1e-4, stepped=3e-3, negligible=1e-5
    ),
    "TensorFloat-32": Arithmetic(
        epsilon=2.0**-23, gradient=1e-4, recomputed=1e-2, stepped=5e-2, negligible=2e-3
    ),
    "float16": Arithmetic(
        epsilon=2.0**-10, gradient=2e-3, recomputed=1e-2, stepped=5e-2, negligible=2e-3
    ),
    "bfloat16": Arithmetic(
        epsilon=2.0**-7, gradient=2e-2, recomputed=5e-2, stepped=0.2, negligible=1e-2
    ),
}
"""From the finest to the coarsest. A number of float16 or TensorFloat-32 has 11 bits, one of
bfloat16 has 8. Measurements behind these numbers: docs/decisions/0051."""
FLOAT32 = ARITHMETICS["float32"]
EXACT = FLOAT32.gradient
"""A gradient's tolerance where nothing rounds more coarsely than float32."""
ROUNDING = 0.1
"""Share of a gradient's tolerance that another order of sums may use. The gate measures the effect
of so much on steps."""


def arithmetic_of(dtype: str) -> Arithmetic:
    """The tolerances of a dtype by PyTorch's name, with or without ``torch.``; float32's where it
    is not listed.
    """
    return ARITHMETICS.get(dtype.removeprefix("torch."), FLOAT32)


NOISE_SAFETY = 4.0
"""× the effect of rounding on a gradient is no difference."""


@dataclass(frozen=True, kw_only=True)
class Sketches:
    """The sketches of several tensors."""

    names: Sequence[str]
    table: Array
    """float64 [names, places]; shorter sketches are padded with zeros."""

    @classmethod
    def of(cls, tensors: Tensors, names: Iterable[str] | None = None) -> Self:
        """The sketches of these names, or all."""
        chosen = list(tensors if names is None else names)
        table = np.zeros((len(chosen), max((len(tensors[name]) for name in chosen), default=0)))
        for row, name in zip(table, chosen, strict=True):
            row[: len(tensors[name])] = tensors[name]
        return cls(names=chosen, table=table)

    def __sub__(self, other: Sketches) -> Sketches:
        """The difference, tensor by tensor; 0 where both are equal, also where both are NaN or
        infinite.
        """
        is_same = (self.table == other.table) | (np.isnan(self.table) & np.isnan(other.table))
        return Sketches(
            names=self.names,
            table=np.where(is_same, 0.0, self.table - np.where(is_same, 0.0, other.table)),
        )

    @property
    def norms(self) -> Array:
        """Length of each tensor."""
        return np.asarray(np.linalg.norm(self.table, axis=1))

    @property
    def norm(self) -> float:
        """Length of all together."""
        return float(np.linalg.norm(self.table))

    def usual(self, sizes: Mapping[str, int]) -> Array:
        """Norm of each tensor if its elements had the mean size of all elements."""
        elements = np.array([sizes.get(name, 1) for name in self.names], dtype=np.float64)
        return np.asarray(self.norm * np.sqrt(elements / max(float(elements.sum()), 1.0)))

    def negligible(self, sizes: Mapping[str, int], arithmetic: Arithmetic) -> list[str]:
        """Gradients so small, compared to the others, that they may be rounding alone."""
        is_small = self.norms < arithmetic.negligible * self.usual(sizes)
        return [name for name, small in zip(self.names, is_small, strict=True) if small]


def rounding_of(
    gradients: Sketches,
    sizes: Mapping[str, int],
    arithmetic: Arithmetic,
    *,
    tried: Mapping[str, float] | None = None,
) -> Array:
    """The effect that rounding alone may have on each gradient: as measured, else what is
    negligible compared to the others.

    ``tried``: measured effects, L2 norms by name.
    """
    untried = arithmetic.negligible * gradients.usual(sizes)
    roundings = [
        (tried or {}).get(name, negligible)
        for name, negligible in zip(gradients.names, untried, strict=True)
    ]
    return NOISE_SAFETY * np.array(roundings)


def share(part: float, whole: float) -> float:
    """A norm relative to another; 0 where ``part`` is 0; else infinite where ``whole`` is 0 or
    either is not finite.
    """
    return float(shares(np.array(part), np.array(whole)))


def shares(parts: Array, wholes: Array) -> Array:
    """``share`` of many."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        is_share = (wholes > 0) & np.isfinite(parts) & np.isfinite(wholes)
        return np.asarray(np.where(parts == 0, 0.0, np.where(is_share, parts / wholes, math.inf)))


PROPORTIONAL = 0.02
"""Largest remaining share where gradients differ by a factor alone."""
SMALL_CHANGE, SMALL_CHANGE_TRIED = 0.1, 1e-3
"""Smallest change of a tensor, as a share of the usual change for its size, by which a distance is
divided: later steps multiply rounding. The second counts where the effect of rounding was
measured."""


class TensorDistance(NamedTuple):
    """A tensor that is not as expected, and its relative distance."""

    rank: int
    name: str
    distance: float


@dataclass(frozen=True, kw_only=True)
class Distances:
    """How far tensors of ranks, or of an arm, are from their expected values, relative to their
    size or to what steps changed.
    """

    names: Sequence[str]
    table: Array
    """float64 [ranks, names], of an arm [1, names]; infinite where a tensor is missing."""
    roundings: Array | float = 0.0
    """float64 [names]: the effect that rounding alone may have on each, in addition to its
    tolerance."""
    tolerances: Array | float = 0.0
    """float64 [names], where they are known here."""
    distance: float = 0.0
    """The distance of all tensors of an arm together."""
    rounding: float = 0.0
    """The effect that rounding alone may have on ``distance``."""

    @property
    def excess(self) -> Array:
        """float64 [ranks, names]: the distances without the possible effect of rounding."""
        return np.maximum(self.table - self.roundings, 0.0)

    @property
    def worst(self) -> float:
        """The largest excess; 0 where nothing was compared."""
        return float(self.excess.max(initial=0.0))

    def beyond(self, tolerances: Array | float | None = None) -> list[TensorDistance]:
        """The tensors beyond these tolerances, or their own, the largest excess first."""
        excess = self.excess
        places = np.argwhere(
            ~(excess <= (self.tolerances if tolerances is None else tolerances))
        ).tolist()
        places.sort(key=lambda place: -excess[tuple(place)])
        return [
            TensorDistance(rank, self.names[tensor], float(self.table[rank, tensor]))
            for rank, tensor in places
        ]

    def names_beyond(self, tolerances: Array | float | None = None) -> list[str]:
        """Names of the tensors that are ``beyond`` on any rank, the largest excess first."""
        return list(dict.fromkeys(distance.name for distance in self.beyond(tolerances)))

    def is_beyond(self, tolerance: float, single: float) -> bool:
        """Whether the distance of all exceeds ``tolerance``, or that of one tensor ``single``."""
        return not (self.distance <= tolerance + self.rounding and self.worst <= single)


def start_distances(ours: Sketches, theirs: Sketches) -> Distances:
    """Distances of two arms' starts, relative to the larger of both."""
    between, lengths = ours - theirs, np.fmax(ours.norms, theirs.norms)
    distance = share(between.norm, max(ours.norm, theirs.norm))
    return Distances(
        names=ours.names, table=shares(between.norms, lengths)[None, :], distance=distance
    )


def gradient_distances(
    ours: Sketches, theirs: Sketches, sizes: Mapping[str, int], arithmetic: Arithmetic
) -> Distances:
    """Distances of gradients from the reference's, relative to the larger of both."""
    between, rounding = ours - theirs, rounding_of(theirs, sizes, arithmetic)
    lengths = np.fmax(np.fmax(ours.norms, theirs.norms), rounding)
    return Distances(
        names=ours.names,
        table=shares(between.norms, lengths)[None, :],
        distance=share(between.norm, theirs.norm),
        roundings=shares(rounding, lengths),
    )


def gradient_factor(ours: Sketches, theirs: Sketches) -> float | None:
    """The factor between two arms' gradients, where they differ by nothing else; else None."""
    squares = float((theirs.table * theirs.table).sum())
    if not squares or not math.isfinite(squares):
        return None
    factor = float((ours.table * theirs.table).sum()) / squares
    scaled = Sketches(names=theirs.names, table=factor * theirs.table)
    return factor if share((ours - scaled).norm, ours.norm) <= PROPORTIONAL else None


@dataclass(frozen=True, kw_only=True)
class TensorChange:
    """Tensors before and after some steps, of the same names."""

    start: Sketches
    end: Sketches

    @property
    def change(self) -> Sketches:
        """What the steps changed."""
        return self.end - self.start


def step_distances(
    ours: TensorChange,
    theirs: TensorChange,
    sizes: Mapping[str, int],
    *,
    steps: int,
    stored: Arithmetic,
    tried: Collection[str] = (),
) -> Distances:
    """Distances of tensors after ``steps`` from the reference's, relative to what the steps
    changed.

    Where steps change a tensor by less than the last place of its numbers, few elements change, and
    by a whole place. That happens in a warm-up of the learning rate and in bfloat16. Steps that
    differ by a share then change other elements: the distance is the root of that share.

    Args:
        ours: after the steps, of one arm.
        theirs: the reference's.
        sizes: elements, by name.
        steps: how many were taken.
        stored: of the dtype of the tensors.
        tried: names of tensors for which the effect of rounding was measured.
    """
    our_change, their_change = ours.change, theirs.change
    larger = our_change if our_change.norm > their_change.norm else their_change
    small = np.array(
        [SMALL_CHANGE_TRIED if name in tried else SMALL_CHANGE for name in larger.names]
    )
    lengths = np.fmax(np.fmax(our_change.norms, their_change.norms), small * larger.usual(sizes))
    between, last_places = ours.end - theirs.end, stored.epsilon * math.sqrt(steps)
    limit = math.sqrt(stored.recomputed)
    return Distances(
        names=larger.names,
        table=shares(between.norms, lengths)[None, :],
        distance=share(between.norm, larger.norm),
        roundings=np.fmin(shares(last_places * theirs.end.norms, lengths), limit),
        rounding=min(share(last_places * theirs.end.norm, larger.norm), limit),
    )
