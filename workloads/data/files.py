"""A workload's data: the options that name it, torchvision's data sets, and what is said of missing
or damaged files.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import AfterValidator

from measurement.errors import PlanError
from workloads.data.input import InputOptions

GZIP = b"\x1f\x8b"
ExpandedPath = Annotated[Path, AfterValidator(lambda path: Path(os.path.expanduser(path)))]  # noqa: PTH111 - leaves an unknown user's as it is


class DataOptions(InputOptions):
    """Options of a workload that reads files."""

    data_dir: ExpandedPath = Path("data")
    """Folder of the data; relative to the folder in which the run was started."""


class FetchOptions(DataOptions):
    """Options of a workload whose data torchvision can download."""

    download: bool = False
    """Download missing data into ``data_dir``."""


FILES = {
    "MNIST": (
        "MNIST/raw",
        [
            f"{part}-{kind}-ubyte"
            for part in ("train", "t10k")
            for kind in ("images-idx3", "labels-idx1")
        ],
    ),
    "CIFAR10": (
        "cifar-10-batches-py",
        ["batches.meta", "test_batch", *(f"data_batch_{number}" for number in range(1, 6))],
    ),
}
"""Where torchvision looks for the files of a data set, and their names."""


def published(name: str, options: FetchOptions, *, train: bool) -> Any:
    """A part of a data set of ``torchvision.datasets``; one process of this host at a time
    downloads it, where the options say so.

    Raises:
        PlanError: it is missing or damaged, or cannot be downloaded.
    """
    from torchvision import datasets

    dataset, root = getattr(datasets, name), options.data_dir
    inside, names = FILES[name]
    remedy = (
        f"set data_dir to where it is, or fetch it by download: true or, where there is a network,"
        f" torchvision.datasets.{name}({str(root)!r}, download=True)"
    )
    with (
        readable(f"{name} in '{root.absolute()}'", remedy=remedy),
        TemporaryDirectory(prefix="ringside-") as arranged,
    ):
        if options.download and not all(_file_named(wanted, root, inside) for wanted in names):
            root.mkdir(parents=True, exist_ok=True)
            with (root / ".fetching").open("wb") as lock:  # that of a killed process is freed
                fcntl.flock(lock, fcntl.LOCK_EX)
                dataset(root, download=True)
        (Path(arranged) / inside).mkdir(parents=True)
        for wanted in names:
            if file := _file_named(wanted, root, inside):
                place = Path(arranged) / inside / wanted
                with file.open("rb") as opened:
                    is_packed = opened.read(len(GZIP)) == GZIP
                if is_packed:
                    place.write_bytes(gzip.decompress(file.read_bytes()))
                else:
                    place.symlink_to(file.absolute())
        return dataset(arranged, train=train)


def _file_named(name: str, root: Path, inside: str) -> Path | None:
    """A file of a data set: where torchvision has it, or in ``root`` or a folder there; packed or
    not, also by the names of 7-Zip (``.idx``) and Kaggle (in a folder of that name).
    """
    pattern = name.replace("-idx", "?idx")
    files = (
        file
        for place in (f"{inside}/", f"{inside}/*/", "", "*/")
        for ending in ("", ".gz")
        for file in sorted(root.glob(place + pattern + ending))
    )
    return next((file for file in files if file.is_file()), None)


@contextmanager
def readable(what: str, *, remedy: str) -> Iterator[None]:
    """Turn errors about missing or damaged files into a ``PlanError``.

    Raises:
        PlanError: what cannot be read, why, and what to do.
    """
    try:
        yield
    except (
        AssertionError,
        EOFError,
        OSError,
        RuntimeError,
        SyntaxError,
        ValueError,
        zlib.error,
    ) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PlanError(f"{what} cannot be read: {reason}; {remedy}") from error
