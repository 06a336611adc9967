"""Torchvision's classifiers: on fixed random images, on CIFAR-10, and on folders like ImageNet's.

The random ones have real compute and real gradients, without loading any data. Importing
torchvision takes a second, so it is done on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer
from torch.utils.data import Dataset, TensorDataset

from measurement.errors import PlanError, shortened, unknown_name
from measurement.plans.settings import PlanOptions
from workloads.base import Workload
from workloads.data.files import DataOptions, FetchOptions, published, readable
from workloads.data.input import Augmented, Sample, Transformed
from workloads.supervised import SGDOptions, SGDTrained


def _known(name: str) -> str:
    import torchvision

    architectures = torchvision.models.list_models(module=torchvision.models)
    if name not in architectures:
        raise ValueError(unknown_name("torchvision model", name, architectures))
    return name


ClassifierName = Annotated[str, AfterValidator(_known)]
"""Any classifier of ``torchvision.models``."""


def build_classifier(name: str, *, num_classes: int) -> nn.Module:
    """Return a classifier with random weights."""
    import torchvision

    extra = (
        {"init_weights": True, "aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    )
    model: nn.Module = torchvision.models.get_model(
        name, weights=None, num_classes=num_classes, **extra
    )
    return model


class SyntheticOptions(PlanOptions):
    """What a plan may set under ``workload_options``."""

    model_config = ConfigDict(validate_default=True)

    model: ClassifierName = "resnet50"
    """Any classifier of ``torchvision.models``."""
    image_size: int = Field(default=224, ge=8)
    """Height and width in pixels."""
    num_classes: int = Field(default=1000, ge=2)
    """Outputs of the model."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Learning rate of the optimizer, before any scaling by ranks."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD."""


class Synthetic(Workload):
    """``options.model`` with random weights, on one fixed batch per rank."""

    Options = SyntheticOptions
    options: SyntheticOptions
    sample_unit = "images"

    def build_model(self) -> nn.Module:
        return build_classifier(self.options.model, num_classes=self.options.num_classes)

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(
            model.parameters(), lr=self.options.learning_rate, momentum=self.options.momentum
        )

    def batches(
        self, *, rank: int, world_size: int, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same images float32 [batch, 3, size, size] and labels int64 [batch] at every
        step; ranks have their own.
        """
        size = self.options.image_size
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + rank)
        images = torch.randn(self.local_batch_size, 3, size, size, generator=generator).to(device)
        labels = torch.randint(
            self.options.num_classes, (self.local_batch_size,), generator=generator
        ).to(device)
        while True:
            yield images, labels

    def compute_loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def count_samples(self, batch: tuple[Tensor, Tensor]) -> int:
        return len(batch[0])


SIDE, PADDING = 32, 4
CIFAR_MEAN, CIFAR_DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
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
        return Augmented(
            self._read(train=True), v2.Compose([*rng, *self._scaled()]), seed=self.seed
        )

    def read_held_out_set(self) -> Dataset[Sample]:
        from torchvision.transforms import v2

        return Transformed(self._read(train=False), v2.Compose(self._scaled()))

    def _scaled(self) -> list[Any]:
        from torchvision.transforms import v2

        size = self.options.image_size
        resized = [v2.Resize(size, antialias=True)] if size != SIDE else []
        return [
            *resized,
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(CIFAR_MEAN, CIFAR_DEVIATION),
        ]

    def _read(self, *, train: bool) -> Dataset[Sample]:
        """Images uint8 [n, 3, 32, 32] and labels int64 [n]."""
        part = published("CIFAR10", self.options, train=train)
        images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
        return TensorDataset(images, torch.tensor(part.targets))  # type: ignore[return-value]


IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
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
    """``options.model`` on random crops of JPEG files, as in arXiv:1512.03385 (He and others).

    The loader decodes the files.
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

    return [
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(IMAGENET_MEAN, IMAGENET_DEVIATION),
    ]
