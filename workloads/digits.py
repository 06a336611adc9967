"""The ConvNet of the MNIST tutorials on real handwritten digits: the 1797 that scikit-learn carries, scaled to 28×28.

Source of the digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from measurement.errors import PlanError
from workloads.input import Sample
from workloads.supervised import SGDOptions, SGDTrained

NUM_CLASSES = 10
TEST_EVERY = 5
"""Every fifth digit is held out for evaluation."""


class ConvNet(nn.Module):
    """Two 5×5 convolution blocks of 16 and 32 channels (batch norm, ReLU, 2×2 max pooling) and one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.block1 = _block(1, 16)
        self.block2 = _block(16, 32)
        self.classify = nn.Linear(7 * 7 * 32, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images float32 [batch, 1, 28, 28] to logits [batch, 10]."""
        features = self.block2(self.block1(images))
        logits: Tensor = self.classify(features.flatten(start_dim=1))
        return logits


class Digits(SGDTrained):
    """Trains ``ConvNet`` through a ``DistributedSampler`` and a ``DataLoader``, as a user would."""

    Options = SGDOptions

    def build_model(self) -> nn.Module:
        """29 thousand parameters."""
        return ConvNet()

    def read_training(self) -> Dataset[Sample]:
        """1437 digits."""
        return _digits(train=True)

    def read_held_out(self) -> Dataset[Sample]:
        """360 digits."""
        return _digits(train=False)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel_size=5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


@lru_cache(maxsize=2)
def _digits(*, train: bool) -> Dataset[Sample]:
    """Images float32 [n, 1, 28, 28], standardised, and labels int64 [n]."""
    table = torch.from_numpy(np.loadtxt(_digits_file(), delimiter=",", dtype=np.int64))
    images, labels = table[:, :-1].float().reshape(-1, 1, 8, 8) / 16.0, table[:, -1]
    images = functional.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    images = (images - images.mean()) / images.std()
    held_out = torch.arange(len(images)) % TEST_EVERY == 0
    chosen = ~held_out if train else held_out
    return TensorDataset(images[chosen], labels[chosen])  # type: ignore[return-value]


def _digits_file() -> Path:
    """The file ``sklearn.datasets.load_digits`` reads, without importing scikit-learn: that costs each rank a second."""
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise PlanError("workload 'digits' needs the digits that scikit-learn carries; run: pip install scikit-learn")
    return Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
