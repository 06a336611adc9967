"""CIFAR-10 with torchvision's ResNet-18."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from workloads.data.files import FetchOptions, published
from workloads.data.input import Augmented, Sample, Transformed
from workloads.supervised import SGDOptions, SGDTrained
from workloads.synthetic import build_classifier

SIDE, PADDING = 32, 4
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Mean and standard deviation of the training images, by channel."""


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
        return build_classifier("resnet18", num_classes=10)

    def read_training_set(self) -> Dataset[Sample]:
        from torchvision.transforms import v2

        rng = [v2.RandomCrop(SIDE, padding=PADDING), v2.RandomHorizontalFlip()]
        return Augmented(self._read(train=True), v2.Compose([*rng, *self._fixed()]), seed=self.seed)

    def read_held_out_set(self) -> Dataset[Sample]:
        from torchvision.transforms import v2

        return Transformed(self._read(train=False), v2.Compose(self._fixed()))

    def _fixed(self) -> list[Any]:
        from torchvision.transforms import v2

        size = self.options.image_size
        resized = [v2.Resize(size, antialias=True)] if size != SIDE else []
        return [*resized, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)]

    def _read(self, *, train: bool) -> Dataset[Sample]:
        """Images uint8 [n, 3, 32, 32] and labels int64 [n]."""
        part = published("CIFAR10", self.options, train=train)
        images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
        return TensorDataset(images, torch.tensor(part.targets))  # type: ignore[return-value]
