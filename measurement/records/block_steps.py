"""The steps of a block in columns: the driver keeps those of all ranks for a whole launch, and lists take far more memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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
        cls, ranks: Sequence[int], *, samples: Sequence[Sequence[int]], phases_s: Sequence[Sequence[Sequence[float]]]
    ) -> BlockSteps:
        """The columns of what each of these ranks timed; ``samples`` and ``phases_s``: by rank and step."""
        lengths = [len(own) for own in phases_s]
        phases = [one for own in phases_s for one in own]
        return cls(
            rank=np.repeat(np.array(ranks, dtype=np.int32), lengths),
            step=np.array([step for length in lengths for step in range(length)], dtype=np.int32),
            samples=np.array([number for own in samples for number in own], dtype=np.int64),
            phases_s=np.array(phases, dtype=np.float64) if phases else np.zeros((0, 0)),
        )
