"""Handwritten digits: 1797 of 8×8 pixels that come with the package, and MNIST.

Both take the ConvNet of the MNIST tutorials; the former are scaled to 28×28.
``workloads/data/digits.txt`` names their source and licence.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from workloads.data.files import FetchOptions, published
from workloads.data.input import Sample, Transformed
from workloads.supervised import SGDOptions, SGDTrained

DIGITS_FILE = Path(__file__).parent / "data" / "digits.csv.gz"
NUM_CLASSES = 10
TEST_EVERY = 5
"""Every fifth digit is held out for evaluation."""


class ConvNet(nn.Module):
    """Two 5×5 convolution blocks of 16 and 32 channels (batch norm, ReLU, 2×2 max pooling) and one
    linear layer.

    29 thousand parameters. Takes images float32 [batch, 1, 28, 28] and gives logits [batch, 10].
    """

    def __init__(self) -> None:
        super().__init__()
        self.block1 = _block(1, 16)
        self.block2 = _block(16, 32)
        self.classify = nn.Linear(7 * 7 * 32, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        features = self.block2(self.block1(images))
        logits: Tensor = self.classify(features.flatten(start_dim=1))
        return logits


class Digits(SGDTrained):
    """``ConvNet`` on 1437 digits, through a ``DistributedSampler`` and a ``DataLoader`` as a user
    would; 360 are held out.
    """

    Options = SGDOptions

    def build_model(self) -> nn.Module:
        return ConvNet()

    def read_training_set(self) -> Dataset[Sample]:
        return self._read(train=True)

    def read_held_out_set(self) -> Dataset[Sample]:
        return self._read(train=False)

    def _read(self, *, train: bool) -> Dataset[Sample]:
        return _digits(train=train)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=5, padding=2),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def read_table() -> npt.NDArray[np.int64]:
    """Read the digits as int64 [1797, 65]: 64 pixels from 0 to 16, row by row, then the label."""
    return np.loadtxt(DIGITS_FILE, delimiter=",", dtype=np.int64)


@lru_cache(maxsize=2)
def _digits(*, train: bool) -> Dataset[Sample]:
    """Return images float32 [n, 1, 28, 28], standardised, and labels int64 [n]."""
    table = torch.from_numpy(read_table())
    images, labels = table[:, :-1].float().reshape(-1, 1, 8, 8) / 16.0, table[:, -1]
    images = functional.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    images = (images - images.mean()) / images.std()
    held_out = torch.arange(len(images)) % TEST_EVERY == 0
    chosen = ~held_out if train else held_out
    return TensorDataset(images[chosen], labels[chosen])  # type: ignore[return-value]


MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of the training images, as the tutorials use them."""


class MnistOptions(SGDOptions, FetchOptions):
    """What a plan may set under ``workload_options``."""


class Mnist(Digits):
    """``ConvNet`` on 28×28 grey images in ten classes. The images are kept in memory as bytes."""

    Options = MnistOptions
    options: MnistOptions

    def _read(self, *, train: bool) -> Dataset[Sample]:
        """Images float32 [1, 28, 28], standardised, and labels int64."""
        part = published("MNIST", self.options, train=train)
        return Transformed(TensorDataset(part.data[:, None], part.targets), _standardised)  # type: ignore[arg-type]


def _standardised(image: Tensor) -> Tensor:
    return (image.to(torch.float32) / 255 - MNIST_MEAN) / MNIST_DEVIATION
