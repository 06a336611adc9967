"""Reads batches of CIFAR-10, pickled or binary, so that a pickle can make nothing but numpy arrays.

torchvision unpickles whatever has the digest of the published files, and knows no others: neither the binary version nor a part.
The format: A. Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html, "Dataset layout".
"""

from __future__ import annotations

import io
import pickle
import textwrap
from pathlib import Path
from typing import Any

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
ARRAY_CONSTRUCTORS = {
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
"""All that a pickled array calls, in protocols 0 to 5, written by numpy 1 or 2."""


class ArraysOnly(pickle.Unpickler):
    """Refuses every class and function but those that make numpy arrays, since a pickle may call any function."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAY_CONSTRUCTORS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of images needs")
        return super().find_class(module, name)


def read_batch(path: Path, *, member: str) -> tuple[Tensor, Tensor]:
    """Read images uint8 [n, 3, 32, 32] and labels int64 [n] of a batch, or of the one so named in an archive of batches.

    Raises:
        PlanError: the file is damaged, is no CIFAR-10 batch, or asks for more than arrays.
    """
    written = read_whole(path, member=member)
    try:
        images, labels = _arrays(written)
        if images.dtype != np.uint8 or labels.dtype.kind not in "iu" or not len(labels) or images.shape != (len(labels), PIXELS):
            raise ValueError(f"'data' and 'labels' are not uint8 [n, {PIXELS}] and n whole numbers")
    except DAMAGED_PICKLE as error:
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise PlanError(f"'{path}' cannot be read as a CIFAR batch: {reason}; fetch it again") from error
    numbers = torch.from_numpy(labels.astype(np.int64))
    check_labels(numbers, path, num_classes=NUM_CLASSES)
    return torch.from_numpy(images.copy()).reshape(-1, *SHAPE), numbers


def _arrays(written: bytes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if written and len(written) % RECORD == 0 and written[0] < NUM_CLASSES:  # a pickle begins with 128
        records = np.frombuffer(written, dtype=np.uint8).reshape(-1, RECORD)
        return records[:, 1:], records[:, 0]
    batch = ArraysOnly(io.BytesIO(written), encoding="latin1").load()
    return np.asarray(batch["data"]), np.asarray(batch["labels"])
