"""CIFAR-10, read from its Python batches, with torchvision's ResNet-18."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from workloads.data.cifar_batches import NUM_CLASSES, read_batch
from workloads.data.data_files import Expected, FetchOptions, fetch, first_whole
from workloads.data.input import Augmented, Sample, Transformed
from workloads.data.pretrained import build_classifier, with_weights
from workloads.supervised import SGDOptions, SGDTrained

FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin", ".")
TRAINING_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
HELD_OUT_BATCHES = ("test_batch",)
SIDE, PADDING = 32, 4
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Mean and standard deviation of the training images, by channel."""


class Cifar10Options(SGDOptions, FetchOptions):
    """What a plan may set under ``workload_options``."""

    image_size: Literal[32, 224] = 32
    """Height and width in pixels. 32 is the original size; 224 suits weights from ImageNet."""
    weight_decay: float = Field(default=5e-4, ge=0)
    """Weight decay of the optimizer."""


class Cifar10(SGDTrained):
    """ResNet-18 (11 million parameters) on 32×32 colour images in ten classes, cropped and flipped at random.

    The images are kept in memory as bytes.
    """

    Options = Cifar10Options
    options: Cifar10Options

    def build_model(self) -> nn.Module:
        model = build_classifier("resnet18", num_classes=NUM_CLASSES)
        return with_weights(model, self.options.pretrained, new_head=self.options.new_head)

    def read_training_set(self) -> Dataset[Sample]:
        from torchvision.transforms import v2

        rng = [v2.RandomCrop(SIDE, padding=PADDING), v2.RandomHorizontalFlip()]
        return Augmented(self._read(TRAINING_BATCHES), v2.Compose([*rng, *self._fixed()]), seed=self.seed)

    def read_held_out_set(self) -> Dataset[Sample]:
        from torchvision.transforms import v2

        return Transformed(self._read(HELD_OUT_BATCHES), v2.Compose(self._fixed()))

    def _fixed(self) -> list[Any]:
        from torchvision.transforms import v2

        size = self.options.image_size
        resized = [v2.Resize(size, antialias=True)] if size != SIDE else []
        return [*resized, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)]

    def _read(self, names: Sequence[str]) -> Dataset[Sample]:
        expected = Expected(
            workload="cifar10",
            root=self.options.data_dir,
            inside=FOLDERS,
            names=(*TRAINING_BATCHES, *HELD_OUT_BATCHES),
            archives=("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
            remedy="set data_dir to where it lies, or download: true to fetch it through torchvision",
        )
        files = expected.require(partial(fetch, "CIFAR10", self.options.data_dir) if self.options.download else None)
        images, labels = zip(*(first_whole(files[name], partial(read_batch, member=name)) for name in names), strict=True)
        return TensorDataset(torch.cat(images), torch.cat(labels))  # type: ignore[return-value]
