"""Any torchvision classifier on fixed random images: real compute and real gradients, without
loading any data.

Importing torchvision takes a second, so it is done on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import AfterValidator, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from measurement.errors import unknown_name
from measurement.plans.settings import PlanOptions
from workloads.base import Workload


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
