"""Image folders as ImageNet is stored, train/CLASS/*.jpg and val/CLASS/*.jpg, with any torchvision
classifier.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from pydantic import Field
from torch import nn
from torch.utils.data import Dataset

from measurement.errors import PlanError, shortened
from workloads.data.files import DataOptions, readable
from workloads.data.input import Augmented, Sample, Transformed
from workloads.supervised import SGDOptions, SGDTrained
from workloads.synthetic import ClassifierName, build_classifier

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet by channel, as torchvision's pretrained weights expect
them."""
BORDER = 256 / 224
"""For evaluation the shorter side is resized to this times the size of the central crop."""


class ImagenetOptions(SGDOptions, DataOptions):
    """What a plan may set under ``workload_options``."""

    model: ClassifierName = "resnet50"
    """Any classifier of ``torchvision.models``."""
    image_size: int = Field(default=224, ge=8)
    """Height and width of the crops in pixels."""
    learning_rate: float = Field(default=0.1, gt=0)
    """Learning rate of the optimizer, before any scaling by ranks."""
    weight_decay: float = Field(default=1e-4, ge=0)
    """Weight decay of the optimizer."""


class Imagenet(SGDTrained):
    """``options.model`` on random crops of JPEG files, as He et al.

    (arXiv:1512.03385) do. The loader decodes the files.
    """

    Options = ImagenetOptions
    options: ImagenetOptions

    def build_model(self) -> nn.Module:
        """Return a model with one output for each folder in ``train/``."""
        return build_classifier(self.options.model, num_classes=len(self._classes()))

    def read_training_set(self) -> Dataset[Sample]:
        """Return the images of ``train/``: a random crop of each, resized, and flipped at
        random.
        """
        from torchvision.transforms import v2

        rng = [
            v2.RandomResizedCrop(self.options.image_size, antialias=True),
            v2.RandomHorizontalFlip(),
        ]
        return Augmented(self._folder("train"), v2.Compose([*rng, *_fixed()]), seed=self.seed)

    def read_held_out_set(self) -> Dataset[Sample]:
        """Return the images of ``val/``: the central crop of each."""
        from torchvision.transforms import v2

        size = self.options.image_size
        middle = [v2.Resize(round(size * BORDER), antialias=True), v2.CenterCrop(size)]
        return Transformed(self._folder("val"), v2.Compose([*middle, *_fixed()]))

    def _classes(self) -> list[str]:
        """List the folders in ``train/``; ``val/`` must have the same."""
        from torchvision.datasets.folder import find_classes

        with self._readable():
            train: list[str] = find_classes(self._part("train"))[0]
            val: list[str] = find_classes(self._part("val"))[0]
        if train != val:
            different = sorted({*train} ^ {*val})
            raise PlanError(
                f"'{self.options.data_dir}' has other classes in val/ than in train/:"
                f" {shortened(different)} only in one of them"
            )
        return train

    def _folder(self, part: str) -> Dataset[Sample]:
        from torchvision.datasets import ImageFolder

        self._classes()
        with self._readable():
            images: Dataset[Sample] = ImageFolder(self._part(part), loader=read_image)
        return images

    def _part(self, part: str) -> str:
        """The folder of a part; the held-out one has several names in use."""
        names = (part, "valid", "validation", "dev") if part == "val" else (part,)
        folders = [self.options.data_dir / name for name in names]
        return str(next((folder for folder in folders if folder.is_dir()), folders[0]))

    def _readable(self) -> AbstractContextManager[None]:
        place = self.options.data_dir.absolute()
        return readable(
            f"imagenet in '{place}'",
            remedy="set data_dir to the folder of train/CLASS/*.jpg and val/CLASS/*.jpg",
        )


def read_image(path: str) -> Any:
    """Read a PIL image in RGB.

    Raises:
        PlanError: the file is damaged, or is no image.
    """
    from torchvision.datasets.folder import pil_loader

    with readable(f"image '{path}'", remedy="replace it, or remove it"):
        return pil_loader(path)


def _fixed() -> list[Any]:
    from torchvision.transforms import v2

    return [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)]
