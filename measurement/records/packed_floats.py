"""Floats in messages: base64 of their bytes. Of a thousand ranks they are read ten times as fast as numbers in JSON."""

from __future__ import annotations

import base64
from array import array
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import PlainSerializer, PlainValidator, SerializationInfo

from measurement.records.block_steps import PHASES


def _pack(values: Any, info: SerializationInfo) -> str | list[Any]:
    floats = np.asarray(values, dtype=np.float64)
    return base64.b64encode(floats.tobytes()).decode() if info.mode_is_json() else floats.tolist()


def _table(value: Any) -> npt.NDArray[np.float64]:
    packed = np.frombuffer(base64.b64decode(value)) if isinstance(value, str) else np.asarray(value, dtype=np.float64)
    return packed.reshape(-1, len(PHASES))


def _row(value: Any) -> array[float]:
    return array("d", base64.b64decode(value) if isinstance(value, str) else value)


Phases = Annotated[npt.NDArray[np.float64], PlainValidator(_table), PlainSerializer(_pack)]
"""float64 [steps, len(PHASES)]: seconds."""
Sketch = Annotated[Any, PlainValidator(_row), PlainSerializer(_pack)]
"""float64 [sketch_size], as an ``array``, which has a quarter of a list's memory: all ranks send hundreds each."""
