"""Image folders as ImageNet is stored, train/CLASS/*.jpg and val/CLASS/*.jpg, with any torchvision
classifier.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import nn
from torch.utils.data import Dataset

from measurement.errors import PlanError
from workloads.data.files import DataOptions, entries, first_few, missing, part_of
from workloads.data.input import Augmented, Sample, Transformed
from workloads.supervised import SGDOptions, SGDTrained
from workloads.synthetic import ClassifierName, build_classifier

PARTS = ("train", "val")
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

    @cached_property
    def _parts(self) -> dict[str, Path]:
        """The folder of each part."""
        folders = [path for path in entries(self.options.data_dir) if path.is_dir()]
        return {
            part: part_of(folders, part, name=part) or self.options.data_dir / part
            for part in PARTS
        }

    def _classes(self) -> list[str]:
        """List the folders in ``train/``; ``val/`` must have the same."""
        train, val = (self._names(part) for part in PARTS)
        each_way = (("train", train - val), ("val", val - train))
        different = [
            f"only in {part}/: {first_few(sorted(alone))}" for part, alone in each_way if alone
        ]
        if different:
            raise PlanError(
                f"'{self.options.data_dir}' has other classes in val/ than in train/:"
                f" {'; '.join(different)}"
            )
        return sorted(train)

    def _names(self, part: str) -> set[str]:
        folder = self._parts[part]
        paths = entries(folder)
        names = {path.name for path in paths if path.is_dir()}
        if names:
            return names
        loose = sum(path.is_file() for path in paths)
        if loose:
            raise PlanError(
                f"'{folder}' holds {loose} files and no class folders, as ImageNet's validation"
                " archive is unpacked; move each image into a folder named like its class in"
                f" '{self.options.data_dir / 'train'}': ILSVRC2012_validation_ground_truth.txt of"
                " the development kit, or LOC_val_solution.csv, says which"
            )
        expected = " and ".join(
            f"'{(self.options.data_dir / part).absolute()}/CLASS/*.jpg'" for part in PARTS
        )
        remedy = (
            "set data_dir to the folder of train/ and val/ (ImageNet's own: image-net.org, after"
            " registration)"
        )
        raise missing("imagenet", expected, folders=[self.options.data_dir, folder], remedy=remedy)

    def _folder(self, part: str) -> Dataset[Sample]:
        from torchvision.datasets.folder import IMG_EXTENSIONS

        from workloads.data.image_folder import Images

        self._classes()
        folder = self._parts[part]
        images = Images(folder)
        filled = set(images.targets)
        empty = [
            str(folder / name) for number, name in enumerate(images.classes) if number not in filled
        ]
        if empty:
            raise PlanError(
                f"class folder without an image: {first_few(empty)}; put images there"
                f" ({', '.join(IMG_EXTENSIONS)}), or remove it from train/ and val/"
            )
        return images


def _fixed() -> list[Any]:
    from torchvision.transforms import v2

    return [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)]
