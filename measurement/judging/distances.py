"""How far tensors and arms are apart, by sketches, and what of it rounding may make, by dtype. Pure.

A sketch is linear and about as long as its tensor (``ringside_agent.reading.sketches``), whatever its number of places. The norm
of one with 16 places is within about 35%, of one with 64 within about 20%: tolerances leave far more room than that.
Arms that begin alike and take the same batches differ by rounding alone, as sums have another order.
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
    """How far what is computed in it may be apart. All are relative L2 distances."""

    epsilon: float
    """The spacing of its numbers: what a step's rounding of a parameter kept in it makes of the parameter at most."""
    gradient: float
    """One gradient, summed in another order or by another library."""
    recomputed: float
    """All gradients together, where other scripts computed them: kernels and casts may be others, too."""
    stepped: float
    """All parameters together, relative to what the first steps changed, where rounding was not tried out."""
    negligible: float
    """× a usual gradient of its size: a gradient that is smaller may be nothing but rounding, as of a bias before a batch norm, and
    optimizers that divide by its size make whole steps of it."""


ARITHMETICS: Mapping[str, Arithmetic] = {
    "float64": Arithmetic(epsilon=2.0**-52, gradient=1e-8, recomputed=1e-4, stepped=3e-3, negligible=1e-5),
    "float32": Arithmetic(epsilon=2.0**-23, gradient=1e-4, recomputed=1e-4, stepped=3e-3, negligible=1e-5),
    "TensorFloat-32": Arithmetic(epsilon=2.0**-23, gradient=1e-4, recomputed=1e-2, stepped=5e-2, negligible=2e-3),
    "float16": Arithmetic(epsilon=2.0**-10, gradient=2e-3, recomputed=1e-2, stepped=5e-2, negligible=2e-3),
    "bfloat16": Arithmetic(epsilon=2.0**-7, gradient=2e-2, recomputed=5e-2, stepped=0.2, negligible=1e-2),
}
"""From the finest to the coarsest. A number of float16 or TensorFloat-32 has 11 bits, one of bfloat16 has 8. What was found
beside these numbers: docs/decisions/0051."""
FLOAT32 = ARITHMETICS["float32"]
EXACT = FLOAT32.gradient
"""A gradient's tolerance where nothing rounds more coarsely than float32."""
ROUNDING = 0.1
"""Part of a gradient's tolerance that sums in another order may use up: the gate tries out what steps make of so much."""


def arithmetic_of(dtype: str) -> Arithmetic:
    """That of a dtype by PyTorch's name, with or without ``torch.``; of those without a line of their own float32's."""
    return ARITHMETICS.get(dtype.removeprefix("torch."), FLOAT32)


NOISE_SAFETY = 4.0
"""× what rounding makes of a gradient is no difference."""


@dataclass(frozen=True, kw_only=True)
class Sketches:
    """The sketches of several tensors."""

    names: Sequence[str]
    table: Array
    """float64 [names, places]; sketches that are shorter end with zeros."""

    @classmethod
    def of(cls, tensors: Tensors, names: Iterable[str] | None = None) -> Self:
        """Take those of these names, or all."""
        kept = list(tensors if names is None else names)
        table = np.zeros((len(kept), max((len(tensors[name]) for name in kept), default=0)))
        for row, name in zip(table, kept, strict=True):
            row[: len(tensors[name])] = tensors[name]
        return cls(names=kept, table=table)

    def __sub__(self, other: Sketches) -> Sketches:
        """The difference, tensor by tensor; nothing where both hold the same, NaN and infinity too."""
        is_same = (self.table == other.table) | (np.isnan(self.table) & np.isnan(other.table))
        return Sketches(names=self.names, table=np.where(is_same, 0.0, self.table - np.where(is_same, 0.0, other.table)))

    def __rmul__(self, factor: float) -> Sketches:
        """Every tensor, scaled."""
        return Sketches(names=self.names, table=factor * self.table)

    def __matmul__(self, other: Sketches) -> float:
        """The inner product over all tensors."""
        return float((self.table * other.table).sum())

    @property
    def norms(self) -> Array:
        """Length of each tensor."""
        return np.asarray(np.linalg.norm(self.table, axis=1))

    @property
    def norm(self) -> float:
        """Length of all together."""
        return float(np.linalg.norm(self.table))

    def usual(self, sizes: Mapping[str, int]) -> Array:
        """How long each would be if its elements were as large as those of all together."""
        elements = np.array([sizes.get(name, 1) for name in self.names], dtype=np.float64)
        return np.asarray(self.norm * np.sqrt(elements / max(float(elements.sum()), 1.0)))

    def negligible(self, sizes: Mapping[str, int], arithmetic: Arithmetic) -> list[str]:
        """Gradients so small beside the others that they may be rounding alone."""
        smallest = arithmetic.negligible * self.usual(sizes)
        return [name for name, length, least in zip(self.names, self.norms, smallest, strict=True) if length < least]


def rounding_of(
    gradients: Sketches, sizes: Mapping[str, int], arithmetic: Arithmetic, *, tried: Mapping[str, float] | None = None
) -> Array:
    """What rounding alone may make of each gradient: what was found by trying, else what is negligible beside the others.

    ``tried``: L2 norms by name.
    """
    untried = arithmetic.negligible * gradients.usual(sizes)
    roundings = [(tried or {}).get(name, least) for name, least in zip(gradients.names, untried, strict=True)]
    return NOISE_SAFETY * np.array(roundings)


def share(part: float, whole: float) -> float:
    """A length relative to another; 0 of nothing, infinite of something where the other is nothing, or where it is not finite."""
    return float(shares(np.array(part), np.array(whole)))


def shares(parts: Array, wholes: Array) -> Array:
    """``share`` of many."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        is_share = (wholes > 0) & np.isfinite(parts) & np.isfinite(wholes)
        return np.asarray(np.where(parts == 0, 0.0, np.where(is_share, parts / wholes, math.inf)))


PROPORTIONAL = 0.02
"""Gradients that differ by a factor alone leave less than this share besides."""
SMALL_CHANGE, SMALL_CHANGE_TRIED = 0.1, 1e-3
"""A tensor that steps change less, beside a usual one of its size, counts as changed by this share of that: later steps multiply
what is rounding in it. Where it was tried out what they make of rounding, far less is seen."""


class TensorDistance(NamedTuple):
    """A tensor that is not what it should be, and by how much, relative to its size."""

    rank: int
    name: str
    distance: float


@dataclass(frozen=True, kw_only=True)
class Distances:
    """How far tensors of ranks, or of an arm, are from what they should be, relative to their size, or to what steps changed."""

    names: Sequence[str]
    table: Array
    """float64 [ranks, names], of an arm [1, names]; infinite of a tensor that is not there."""
    roundings: Array | float = 0.0
    """float64 [names]: what rounding alone may make of each, besides what tolerances are for."""
    tolerances: Array | float = 0.0
    """float64 [names], where they are known here."""
    distance: float = 0.0
    """That of all tensors of an arm together."""
    rounding: float = 0.0
    """What rounding alone may make of that."""

    @property
    def excess(self) -> Array:
        """float64 [ranks, names]: the distances without what rounding may make of them."""
        return np.maximum(self.table - self.roundings, 0.0)

    @property
    def worst(self) -> float:
        """The largest excess; 0 where nothing was compared."""
        return float(self.excess.max(initial=0.0))

    def beyond(self, tolerances: Array | float | None = None) -> list[TensorDistance]:
        """What is past these tolerances, or its own, that of the largest excess first."""
        excess = self.excess
        places = np.argwhere(~(excess <= (self.tolerances if tolerances is None else tolerances))).tolist()
        places.sort(key=lambda place: -excess[tuple(place)])
        return [TensorDistance(rank, self.names[tensor], float(self.table[rank, tensor])) for rank, tensor in places]

    def names_beyond(self, tolerances: Array | float | None = None) -> list[str]:
        """Names of the tensors of which some rank's is ``beyond``, that of the largest excess first."""
        return list(dict.fromkeys(distance.name for distance in self.beyond(tolerances)))

    def is_beyond(self, tolerance: float, single: float) -> bool:
        """Whether all together are farther apart than ``tolerance``, or one of them than ``single``."""
        return not (self.distance <= tolerance + self.rounding and self.worst <= single)


def start_apart(ours: Sketches, theirs: Sketches) -> Distances:
    """Hold what arms start with against each other, relative to the larger of both."""
    between, lengths = ours - theirs, np.fmax(ours.norms, theirs.norms)
    distance = share(between.norm, max(ours.norm, theirs.norm))
    return Distances(names=ours.names, table=shares(between.norms, lengths)[None, :], distance=distance)


def gradients_apart(ours: Sketches, theirs: Sketches, sizes: Mapping[str, int], arithmetic: Arithmetic) -> Distances:
    """Hold gradients against the reference's, relative to the larger of both."""
    between, rounding = ours - theirs, rounding_of(theirs, sizes, arithmetic)
    lengths = np.fmax(np.fmax(ours.norms, theirs.norms), rounding)
    return Distances(
        names=ours.names,
        table=shares(between.norms, lengths)[None, :],
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
        table=shares(between.norms, lengths)[None, :],
        distance=share(between.norm, larger.norm),
        roundings=np.fmin(shares(last_places * theirs.end.norms, lengths), most),
        rounding=min(share(last_places * theirs.end.norm, larger.norm), most),
    )
