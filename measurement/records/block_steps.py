"""The steps of a block in columns: the driver keeps those of all ranks for a whole launch, and lists take far more memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

PHASES = ("data_wait", "forward", "backward", "optimizer")


@dataclass(frozen=True, kw_only=True)
class BlockSteps:
    """Every rank's steps, one after another, by rank."""

    rank: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    samples: npt.NDArray[np.int64]
    phases_s: npt.NDArray[np.float64]
    """[rows, len(PHASES)]."""

    @classmethod
    def of(
        cls, ranks: Sequence[int], *, samples: Sequence[Sequence[int]], phases_s: Sequence[npt.NDArray[np.float64]]
    ) -> BlockSteps:
        """The columns of what each of these ranks timed; ``samples``: by rank and step; ``phases_s``: by rank."""
        lengths = [len(own) for own in samples]
        return cls(
            rank=np.repeat(np.array(ranks, dtype=np.int32), lengths),
            step=np.fromiter(chain.from_iterable(map(range, lengths)), dtype=np.int32, count=sum(lengths)),
            samples=np.fromiter(chain.from_iterable(samples), dtype=np.int64, count=sum(lengths)),
            phases_s=np.concatenate([np.zeros((0, len(PHASES))), *phases_s]),
        )
