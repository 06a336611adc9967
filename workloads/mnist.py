"""MNIST with the ConvNet of the tutorials.

Reads the published files, also as torchvision stores them; Fashion-MNIST too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from measurement.errors import PlanError
from workloads.data.files import FetchOptions, check_labels, read_whole, require_files
from workloads.data.input import Sample, Transformed
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
        return ConvNet()

    def read_training_set(self) -> Dataset[Sample]:
        return self._read("train")

    def read_held_out_set(self) -> Dataset[Sample]:
        return self._read("t10k")

    def _read(self, part: str) -> Dataset[Sample]:
        names = [f"{part}-{kind}" for part in ("train", "t10k") for kind in KINDS]
        inside = ("MNIST/raw", "raw", ".")
        files = require_files(
            names, workload="mnist", options=self.options, inside=inside, dataset="MNIST"
        )
        images, labels = (files[names.index(f"{part}-{kind}")] for kind in KINDS)
        return read_images(images, labels)


def read_images(images_file: Path, labels_file: Path) -> Dataset[Sample]:
    """Read images float32 [1, 28, 28], standardised, and labels int64.

    Raises:
        PlanError: a file is damaged, or the two files do not belong together.
    """
    from torchvision.datasets import mnist

    images = read_idx(images_file, kind="images", read=mnist.read_image_file)
    labels = read_idx(labels_file, kind="labels", read=mnist.read_label_file)
    if images.shape[1:] != (SIDE, SIDE):
        size = " x ".join(map(str, images.shape[1:]))
        raise PlanError(
            f"'{images_file}' holds images of {size}; workload 'mnist' takes {SIDE} x {SIDE}"
        )
    if len(images) != len(labels):
        raise PlanError(
            f"'{images_file}' holds {len(images)} images and '{labels_file}' {len(labels)} labels:"
            " they do not belong together"
        )
    check_labels(labels, labels_file, num_classes=NUM_CLASSES)
    return Transformed(TensorDataset(images[:, None], labels), _standardised)  # type: ignore[arg-type]


def read_idx(path: Path, *, kind: str, read: Callable[[str], Tensor]) -> Tensor:
    """Read a file, packed or not, by one of torchvision's functions, which take the path of a plain
    one.

    Raises:
        PlanError: it is damaged, or something else.
    """
    with NamedTemporaryFile(prefix="ringside-") as plain:
        plain.write(read_whole(path))
        plain.flush()
        try:
            return read(plain.name)
        except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise PlanError(
                f"'{path}' is not an IDX file of {kind}, or is cut off; fetch it again, or see"
                " whether it was renamed"
            ) from error


def _standardised(image: Tensor) -> Tensor:
    return (image.to(torch.float32) / 255 - MEAN) / DEVIATION
