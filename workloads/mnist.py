"""MNIST with the ConvNet of the tutorials. Reads the published files, also as torchvision stores them; Fashion-MNIST too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from measurement.errors import PlanError
from workloads.data.compressed import unpacked
from workloads.data.data_files import Expected, FetchOptions, check_labels, fetch, first_whole
from workloads.data.input import Sample, Transformed
from workloads.data.pretrained import with_weights
from workloads.digits import NUM_CLASSES, ConvNet
from workloads.supervised import SGDOptions, SGDTrained

KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
SIDE = 28
MEAN, DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of the training images, as the tutorials use them."""


class MnistOptions(SGDOptions, FetchOptions):
    """What a plan may set under ``workload_options``."""


class Mnist(SGDTrained):
    """``ConvNet`` on 28×28 grey images in ten classes. The images are kept in memory as bytes."""

    Options = MnistOptions
    options: MnistOptions

    def build_model(self) -> nn.Module:
        return with_weights(ConvNet(), self.options.pretrained, new_head=self.options.new_head)

    def read_training_set(self) -> Dataset[Sample]:
        return self._read("train")

    def read_held_out_set(self) -> Dataset[Sample]:
        return self._read("t10k")

    def _read(self, part: str) -> Dataset[Sample]:
        expected = Expected(
            workload="mnist",
            root=self.options.data_dir,
            inside=("MNIST/raw", "raw", "."),
            names=tuple(f"{one}-{kind}" for one in ("train", "t10k") for kind in KINDS),
            remedy="set data_dir to where it lies, or download: true to fetch it through torchvision",
        )
        files = expected.require(partial(fetch, "MNIST", self.options.data_dir) if self.options.download else None)
        images, labels = (files[f"{part}-{kind}"] for kind in KINDS)
        return read_images(images, labels)


def read_images(images_files: Sequence[Path], labels_files: Sequence[Path]) -> Dataset[Sample]:
    """Read images float32 [1, 28, 28], standardised, and labels int64, each from the first of these files that is whole.

    Raises:
        PlanError: a file is damaged, or the two files do not belong together.
    """
    from torchvision.datasets import mnist

    images_file, images = first_whole(images_files, partial(read_idx, kind="images", read=mnist.read_image_file))
    labels_file, labels = first_whole(labels_files, partial(read_idx, kind="labels", read=mnist.read_label_file))
    if images.shape[1:] != (SIDE, SIDE):
        size = " x ".join(map(str, images.shape[1:]))
        raise PlanError(f"'{images_file}' holds images of {size}; workload 'mnist' takes {SIDE} x {SIDE}")
    if len(images) != len(labels):
        raise PlanError(
            f"'{images_file}' holds {len(images)} images and '{labels_file}' {len(labels)} labels: they do not belong together"
        )
    check_labels(labels, labels_file, num_classes=NUM_CLASSES)
    return Transformed(TensorDataset(images[:, None], labels), _standardised)  # type: ignore[arg-type]


def read_idx(path: Path, *, kind: str, read: Callable[[str], Tensor]) -> tuple[Path, Tensor]:
    """Read a file by one of torchvision's functions; returns its path, too.

    Raises:
        PlanError: it is damaged, or something else.
    """
    with unpacked(path) as plain:
        try:
            return path, read(plain)
        except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise PlanError(
                f"'{path}' is no IDX file of {kind}, or is cut off; fetch it again, or see whether it was renamed"
            ) from error


def _standardised(image: Tensor) -> Tensor:
    return (image.to(torch.float32) / 255 - MEAN) / DEVIATION
