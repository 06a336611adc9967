"""Reads batches of CIFAR-10: binary ones, and pickle files, unpickled so that they can make nothing but numpy arrays.

The format: A. Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html, "Dataset layout".
"""

from __future__ import annotations

import io
import pickle
import struct
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from measurement.errors import PlanError
from workloads.data.compressed import read_whole
from workloads.data.data_files import DAMAGED_PICKLE, check_labels

NUM_CLASSES = 10
SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
"""Bytes of an image in the binary version, its label first."""
MOST_BYTES = 256 << 20
"""The largest file: a batch of 10,000 images has 31 MB."""

ARRAY_CONSTRUCTORS = {
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
"""All that a pickled array calls, in protocols 0 to 5, written by numpy 1 or 2."""


class ArraysOnly(pickle._Unpickler):
    """Refuses every class and function but those that make numpy arrays, since a pickle may call any function.

    It is the pure-Python unpickler: the other makes room for whatever number of values a damaged file promises (a file of 10
    bytes took 2.7 GB), and this one for one kind only, which it reads as below.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    read: Callable[[int], bytes]
    append: Callable[[object], None]

    def load_bytearray8(self) -> None:
        """As many bytes as there are, where the file promises more."""
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAY_CONSTRUCTORS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of images needs")
        return super().find_class(module, name)


def read_batch(path: Path, *, member: str = "") -> tuple[Tensor, Tensor]:
    """Read images uint8 [n, 3, 32, 32] and labels int64 [n] of a batch, or of the one so named in an archive of batches.

    Raises:
        PlanError: the file is damaged, is no CIFAR-10 batch, or asks for more than arrays.
    """
    written = read_whole(path, most=MOST_BYTES, member=member)
    if written and len(written) % RECORD == 0 and written[0] < NUM_CLASSES:  # a pickle begins with 128
        return _from_records(torch.frombuffer(written, dtype=torch.uint8).reshape(-1, RECORD), path)
    try:
        content = ArraysOnly(io.BytesIO(written), encoding="latin1").load()
    except DAMAGED_PICKLE as error:
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise PlanError(f"'{path}' cannot be read as a CIFAR batch: {reason}; fetch it again") from error
    images = content.get("data") if isinstance(content, dict) else None
    labels = content.get("labels") if isinstance(content, dict) else None
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (PIXELS,) or not len(images):
        raise PlanError(f"'{path}' is no CIFAR-10 batch: 'data' is {_form(images)}, not uint8 [n, {PIXELS}]; fetch it again")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise PlanError(f"'{path}' is no CIFAR-10 batch: 'labels' is {_form(labels)}, not a list of numbers; fetch it again")
    if len(labels) != len(images):
        raise PlanError(f"'{path}' holds {len(images)} images and {len(labels)} labels; fetch it again")
    numbers = torch.tensor(labels)
    check_labels(numbers, path, num_classes=NUM_CLASSES)
    return torch.from_numpy(images.copy()).reshape(-1, *SHAPE), numbers


def _from_records(records: Tensor, path: Path) -> tuple[Tensor, Tensor]:
    labels = records[:, 0].long()
    check_labels(labels, path, num_classes=NUM_CLASSES)
    return records[:, 1:].reshape(-1, *SHAPE).clone(), labels


def _form(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
