"""MNIST with the ConvNet of the tutorials."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from workloads.data.files import FetchOptions, published
from workloads.data.input import Sample, Transformed
from workloads.digits import ConvNet
from workloads.supervised import SGDOptions, SGDTrained

MEAN, DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of the training images, as the tutorials use them."""


class MnistOptions(SGDOptions, FetchOptions):
    """What a plan may set under ``workload_options``."""


class Mnist(SGDTrained):
    """``ConvNet`` on 28×28 grey images in ten classes. The images are kept in memory as bytes."""

    Options = MnistOptions
    options: MnistOptions

    def build_model(self) -> nn.Module:
        return ConvNet()

    def read_training_set(self) -> Dataset[Sample]:
        return self._read(train=True)

    def read_held_out_set(self) -> Dataset[Sample]:
        return self._read(train=False)

    def _read(self, *, train: bool) -> Dataset[Sample]:
        """Images float32 [1, 28, 28], standardised, and labels int64."""
        part = published("MNIST", self.options, train=train)
        return Transformed(TensorDataset(part.data[:, None], part.targets), _standardised)  # type: ignore[arg-type]


def _standardised(image: Tensor) -> Tensor:
    return (image.to(torch.float32) / 255 - MEAN) / DEVIATION
