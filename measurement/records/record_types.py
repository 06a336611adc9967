"""Building blocks of records: their base, the steps of a block in columns, and floats packed for
messages.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator, SerializationInfo


class Written(BaseModel):
    """Base of what is stored."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


PHASES = ("data_wait", "forward", "backward", "optimizer", "exchange")
"""The last is a script's wait for exchange outside C++; it is 0 for Ringside's own ranks."""


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
        cls,
        ranks: Sequence[int],
        *,
        samples: Sequence[Sequence[int]],
        phases_s: Sequence[npt.NDArray[np.float64]],
    ) -> BlockSteps:
        """The columns of these ranks' steps; ``samples``: by rank and step; ``phases_s``: by
        rank.
        """
        lengths = [len(rank_samples) for rank_samples in samples]
        return cls(
            rank=np.repeat(np.array(ranks, dtype=np.int32), lengths),
            step=np.fromiter(
                chain.from_iterable(map(range, lengths)), dtype=np.int32, count=sum(lengths)
            ),
            samples=np.fromiter(chain.from_iterable(samples), dtype=np.int64, count=sum(lengths)),
            phases_s=np.concatenate([np.zeros((0, len(PHASES))), *phases_s]),
        )


def _pack(values: Any, info: SerializationInfo) -> str | list[Any]:
    floats = np.asarray(values, dtype=np.float64)
    return base64.b64encode(floats.tobytes()).decode() if info.mode_is_json() else floats.tolist()


def _table(value: Any) -> npt.NDArray[np.float64]:
    packed = (
        np.frombuffer(base64.b64decode(value))
        if isinstance(value, str)
        else np.asarray(value, dtype=np.float64)
    )
    return packed.reshape(-1, len(PHASES))


def _row(value: Any) -> array[float]:
    return array("d", base64.b64decode(value) if isinstance(value, str) else value)


Phases = Annotated[npt.NDArray[np.float64], PlainValidator(_table), PlainSerializer(_pack)]
"""float64 [steps, len(PHASES)]: seconds."""
Sketch = Annotated[Any, PlainValidator(_row), PlainSerializer(_pack)]
"""float64 [sketch_size], as an ``array``, which has a quarter of a list's memory: all ranks send
hundreds each."""
