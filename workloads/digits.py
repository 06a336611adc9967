"""The ConvNet of the MNIST tutorials on real handwritten digits: the 1797 that scikit-learn carries, scaled to 28×28.

Source of the digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from measurement.errors import PlanError
from workloads.base import Workload

NUM_CLASSES = 10
TEST_EVERY = 5
"""Every fifth digit is held out for evaluation."""


class DigitsOptions(BaseModel):
    """What a plan may set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    loader_workers: int = Field(default=0, ge=0)
    """Processes that load batches, per rank; 0: the rank itself."""


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


class Digits(Workload):
    """Trains ``ConvNet`` through a ``DistributedSampler`` and a ``DataLoader``, as a user would."""

    Options = DigitsOptions
    options: DigitsOptions
    sample_unit = "images"

    def build_model(self) -> nn.Module:
        """29 thousand parameters."""
        return ConvNet()

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """SGD with momentum."""
        return SGD(model.parameters(), lr=self.options.learning_rate, momentum=self.options.momentum)

    def batches(self, *, rank: int, world_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Epoch after epoch of this rank's shard, reshuffled each time; images [batch, 1, 28, 28], labels [batch]."""
        dataset = _digits(train=True)
        if self.local_batch_size * world_size > len(dataset):
            raise PlanError(
                f"local_batch_size {self.local_batch_size} x {world_size} ranks is more than the "
                f"{len(dataset)} training digits; use a smaller local_batch_size"
            )
        sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
            dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=self.seed, drop_last=True
        )
        loader = DataLoader(
            dataset,
            batch_size=self.local_batch_size,
            sampler=sampler,
            drop_last=True,
            num_workers=self.options.loader_workers,
            persistent_workers=self.options.loader_workers > 0,
            pin_memory=device.type == "cuda",
        )
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            for images, labels in loader:
                yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            epoch += 1

    def compute_loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross entropy."""
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def count_samples(self, batch: tuple[Tensor, Tensor]) -> int:
        """Images in the batch."""
        return len(batch[0])

    @torch.no_grad()
    def evaluate(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        """Top-1 accuracy on the held-out digits."""
        images, labels = (tensor.to(device) for tensor in _digits(train=False).tensors)
        was_training = model.training
        model.eval()
        correct = (model(images).argmax(dim=1) == labels).float().mean()
        model.train(was_training)
        return {"top1_accuracy": float(correct)}


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel_size=5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


@lru_cache(maxsize=2)
def _digits(*, train: bool) -> TensorDataset:
    """Images float32 [n, 1, 28, 28], standardised, and labels int64 [n]."""
    table = torch.from_numpy(np.loadtxt(_digits_file(), delimiter=",", dtype=np.int64))
    images, labels = table[:, :-1].float().reshape(-1, 1, 8, 8) / 16.0, table[:, -1]
    images = functional.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    images = (images - images.mean()) / images.std()
    held_out = torch.arange(len(images)) % TEST_EVERY == 0
    chosen = ~held_out if train else held_out
    return TensorDataset(images[chosen], labels[chosen])


def _digits_file() -> Path:
    """The file ``sklearn.datasets.load_digits`` reads, without importing scikit-learn: that costs each rank a second."""
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise PlanError("workload 'digits' needs the digits that scikit-learn carries; run: pip install scikit-learn")
    return Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
