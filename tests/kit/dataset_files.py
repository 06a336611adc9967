"""Small real files in the formats users have: 8×8 digits as IDX, random images as CIFAR pickles and
JPEG, a text."""

from __future__ import annotations

import gzip
import hashlib
import pickle
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.datasets import CIFAR10

from workloads.digits import read_table

HELD_OUT_SAMPLES = 23
"""Divides by nothing that the tests use as a number of ranks or as a batch."""
TRAINING_SAMPLES = 61
"""Of MNIST."""
OPTIONS = {
    "imagenet": {"model": "squeezenet1_1", "image_size": 64},
    "language_model": {"size": "nano", "sequence_length": 16},
}


def write_data(name: str, folder: Path) -> dict[str, object]:
    """Data for a workload, and the options that name it; none for one that needs no files."""
    if name not in WRITERS:
        return {}
    WRITERS[name](folder)
    return {"data_dir": str(folder), **OPTIONS.get(name, {})}


def idx(array: np.ndarray) -> bytes:
    """An IDX file of unsigned bytes."""
    return (
        bytes([0, 0, 8, array.ndim])
        + b"".join(n.to_bytes(4, "big") for n in array.shape)
        + array.astype(np.uint8).tobytes()
    )


def digits_28() -> tuple[np.ndarray, np.ndarray]:
    """The digits of workload 'digits', uint8 [1797, 28, 28], and their labels."""
    table = read_table()
    small = torch.from_numpy(table[:, :-1]).float().reshape(-1, 1, 8, 8)
    large = torch.nn.functional.interpolate(small, size=(28, 28), mode="bilinear")[:, 0]
    return (large * (255 / 16)).round().to(torch.uint8).numpy(), table[:, -1]


def write_mnist(folder: Path, *, suffix: str = "", inside="MNIST/raw") -> None:
    """As torchvision lays it out, unless ``inside`` says otherwise."""
    place = folder / inside
    place.mkdir(parents=True, exist_ok=True)
    images, labels = digits_28()
    held_out = slice(TRAINING_SAMPLES, TRAINING_SAMPLES + HELD_OUT_SAMPLES)
    for part, chosen in (("train", slice(TRAINING_SAMPLES)), ("t10k", held_out)):
        for kind, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            content = idx(array[chosen])
            (place / f"{part}-{kind}{suffix}").write_bytes(
                gzip.compress(content) if suffix else content
            )


def cifar_batch(seed: int, images: int) -> dict[str, object]:
    """One batch's content."""
    rng = np.random.default_rng(seed)
    return {
        "labels": rng.integers(10, size=images).tolist(),
        "data": rng.integers(256, size=(images, 3072), dtype=np.uint8),
    }


def write_cifar10(folder: Path) -> None:
    """Five batches of 7 images, and the test batch; torchvision accepts them in this process."""
    place = folder / CIFAR10.base_folder
    place.mkdir(parents=True)

    def write(name: str, content: object) -> list[str]:
        written = pickle.dumps(content)
        (place / name).write_bytes(written)
        return [name, hashlib.md5(written).hexdigest()]

    CIFAR10.train_list = [
        write(f"data_batch_{number}", cifar_batch(number - 1, 7)) for number in range(1, 6)
    ]
    CIFAR10.test_list = [write("test_batch", cifar_batch(5, HELD_OUT_SAMPLES))]
    name, digest = write("batches.meta", {"label_names": list("0123456789")})
    CIFAR10.meta = {"filename": name, "key": "label_names", "md5": digest}


def write_imagenet(folder: Path) -> None:
    """Two classes of JPEG files of several sizes, one of them grey."""
    rng = np.random.default_rng(1)
    for part, numbers in (("train", (11, 8)), ("val", (12, 11))):
        for name, images in zip(("cat", "dog"), numbers, strict=True):
            (folder / part / name).mkdir(parents=True)
            for number in range(images):
                shape = (70 + number, 90 - number) if number == 0 else (70 + number, 90 - number, 3)
                pixels = rng.integers(256, size=shape, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number}.jpg")


def write_text(folder: Path) -> None:
    """Numbers in words, as train.txt and val.txt; the latter makes 23 sequences of 16 and a
    rest."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    folder.mkdir(parents=True, exist_ok=True)
    text = " ".join(
        f"{n} is {' '.join(words[int(digit)] for digit in str(n))}." for n in range(400)
    )
    (folder / "train.txt").write_text(text[:6000])
    (folder / "val.txt").write_text(text[6000 : 6000 + HELD_OUT_SAMPLES * 16 + 5])


WRITERS = {
    "cifar10": write_cifar10,
    "imagenet": write_imagenet,
    "language_model": write_text,
    "mnist": write_mnist,
}
