"""Small real files in the formats users have: 8×8 digits as IDX, random images as CIFAR pickles and
JPEG, a text."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from workloads.cifar10 import HELD_OUT_BATCHES, TRAINING_BATCHES
from workloads.digits import read_table

HELD_OUT_SAMPLES = 23
"""Divides by nothing that the tests use as a number of ranks or as a batch."""
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


def write_mnist(
    folder: Path,
    *,
    training: int = 61,
    held_out: int = HELD_OUT_SAMPLES,
    suffix: str = "",
    inside="MNIST/raw",
) -> None:
    """As torchvision lays it out, unless ``inside`` says otherwise."""
    place = folder / inside
    place.mkdir(parents=True, exist_ok=True)
    images, labels = digits_28()
    for part, chosen in (
        ("train", slice(0, training)),
        ("t10k", slice(training, training + held_out)),
    ):
        for kind, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            content = idx(array[chosen])
            (place / f"{part}-{kind}{suffix}").write_bytes(
                gzip.compress(content) if suffix else content
            )


class Python2Pickler(pickle._Pickler):
    """Writes strings as Python 2 did, which is how CIFAR's own files are written."""

    def save_text(self, text: str | bytes) -> None:
        data = text.encode("latin1") if isinstance(text, str) else text
        self.write(pickle.BINSTRING + len(data).to_bytes(4, "little") + data)
        self.memoize(text)

    dispatch = {**pickle._Pickler.dispatch, str: save_text, bytes: save_text}  # noqa: RUF012 - as pickle has it


def cifar_batch(seed: int, images: int) -> dict[str, object]:
    """One batch's content."""
    rng = np.random.default_rng(seed)
    return {
        "batch_label": f"batch {seed}",
        "labels": rng.integers(10, size=images).tolist(),
        "data": rng.integers(256, size=(images, 3072), dtype=np.uint8),
        "filenames": [f"{n}.png" for n in range(images)],
    }


def write_python2_pickle(path: Path, content: object) -> None:
    """As Python 2 and an old numpy write it."""
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(content)
    path.write_bytes(path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))


def write_cifar10(folder: Path) -> None:
    """Five batches of 7 images, and the test batch."""
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True)
    for seed, name in enumerate((*TRAINING_BATCHES, *HELD_OUT_BATCHES)):
        write_python2_pickle(
            place / name, cifar_batch(seed, HELD_OUT_SAMPLES if name in HELD_OUT_BATCHES else 7)
        )


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
