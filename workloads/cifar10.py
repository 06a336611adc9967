"""CIFAR-10 with torchvision's ResNet-18, read by an unpickler that makes only numpy arrays.

torchvision unpickles any file with the digest of a published one, and accepts no part of the data
set.
"""

from __future__ import annotations

import io
import pickle
import struct
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from measurement.errors import PlanError
from workloads.data.files import FetchOptions, check_labels, read_whole, require_files
from workloads.data.input import Augmented, Sample, Transformed
from workloads.supervised import SGDOptions, SGDTrained
from workloads.synthetic import build_classifier

TRAINING_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
HELD_OUT_BATCHES = ("test_batch",)
NUM_CLASSES = 10
SIDE, PADDING = 32, 4
PIXELS = 3 * SIDE * SIDE
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Mean and standard deviation of the training images, by channel."""
ARRAY_CONSTRUCTORS = {
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
"""All functions that a pickled array calls, in protocols 0 to 5, written by numpy 1 or 2."""
DAMAGED_PICKLE = (
    *(
        pickle.UnpicklingError,
        ArithmeticError,
        AttributeError,
        EOFError,
        ImportError,
        LookupError,
        MemoryError,
        OSError,
    ),
    *(RuntimeError, struct.error, TypeError, ValueError),
)
"""What ``pickle`` raises on damaged bytes."""


class Cifar10Options(SGDOptions, FetchOptions):
    """What a plan may set under ``workload_options``."""

    image_size: Literal[32, 224] = 32
    """Height and width in pixels. 32 is the original size; 224 is ImageNet's."""
    weight_decay: float = Field(default=5e-4, ge=0)
    """Weight decay of the optimizer."""


class Cifar10(SGDTrained):
    """ResNet-18 (11 million parameters) on 32×32 colour images in ten classes, cropped and flipped
    at random.

    The images are kept in memory as bytes.
    """

    Options = Cifar10Options
    options: Cifar10Options

    def build_model(self) -> nn.Module:
        return build_classifier("resnet18", num_classes=NUM_CLASSES)

    def read_training_set(self) -> Dataset[Sample]:
        from torchvision.transforms import v2

        rng = [v2.RandomCrop(SIDE, padding=PADDING), v2.RandomHorizontalFlip()]
        return Augmented(
            self._read(TRAINING_BATCHES), v2.Compose([*rng, *self._fixed()]), seed=self.seed
        )

    def read_held_out_set(self) -> Dataset[Sample]:
        from torchvision.transforms import v2

        return Transformed(self._read(HELD_OUT_BATCHES), v2.Compose(self._fixed()))

    def _fixed(self) -> list[Any]:
        from torchvision.transforms import v2

        size = self.options.image_size
        resized = [v2.Resize(size, antialias=True)] if size != SIDE else []
        return [*resized, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)]

    def _read(self, names: Sequence[str]) -> Dataset[Sample]:
        every, inside = (*TRAINING_BATCHES, *HELD_OUT_BATCHES), ("cifar-10-batches-py", ".")
        files = require_files(
            every, workload="cifar10", options=self.options, inside=inside, dataset="CIFAR10"
        )
        images, labels = zip(
            *(read_batch(file) for name, file in zip(every, files, strict=True) if name in names),
            strict=True,
        )
        return TensorDataset(torch.cat(images), torch.cat(labels))  # type: ignore[return-value]


class ArraysOnly(pickle.Unpickler):
    """Refuses all classes and functions except those that make numpy arrays, since a pickle may
    call any function.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAY_CONSTRUCTORS:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no batch of images needs"
            )
        return super().find_class(module, name)


def read_batch(path: Path) -> tuple[Tensor, Tensor]:
    """Read images uint8 [n, 3, 32, 32] and labels int64 [n] of a pickled batch.

    Raises:
        PlanError: the file is damaged, is no CIFAR-10 batch, or asks for more than arrays.
    """
    written = read_whole(path)
    try:
        batch = ArraysOnly(io.BytesIO(written), encoding="latin1").load()
        images, labels = np.asarray(batch["data"]), np.asarray(batch["labels"])
        if (
            images.dtype != np.uint8
            or labels.dtype.kind not in "iu"
            or not len(labels)
            or images.shape != (len(labels), PIXELS)
        ):
            raise ValueError(f"'data' and 'labels' are not uint8 [n, {PIXELS}] and n whole numbers")
    except DAMAGED_PICKLE as error:
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise PlanError(
            f"'{path}' cannot be read as a CIFAR batch: {reason}; fetch it again"
        ) from error
    numbers = torch.from_numpy(labels.astype(np.int64))
    check_labels(numbers, path, num_classes=NUM_CLASSES)
    return torch.from_numpy(images.copy()).reshape(-1, 3, SIDE, SIDE), numbers
