"""A workload's data: the options that name it, torchvision's data sets, and what is said of missing
or damaged files.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from measurement.errors import PlanError
from workloads.data.input import InputOptions

ExpandedPath = Annotated[Path, AfterValidator(lambda path: Path(os.path.expanduser(path)))]  # noqa: PTH111 - leaves an unknown user's as it is


class DataOptions(InputOptions):
    """Options of a workload that reads files."""

    data_dir: ExpandedPath = Path("data")
    """Folder of the data; relative to the folder in which the run was started."""


class FetchOptions(DataOptions):
    """Options of a workload whose data torchvision can download."""

    download: bool = False
    """Download missing data into ``data_dir``."""


def published(name: str, options: FetchOptions, *, train: bool) -> Any:
    """A part of a data set of ``torchvision.datasets``; one process of this host at a time
    downloads it, where the options say so.

    Raises:
        PlanError: it is missing or damaged, or cannot be downloaded.
    """
    from torchvision import datasets

    root = options.data_dir
    remedy = (
        f"set data_dir to where it is, or fetch it by download: true or, where there is a network,"
        f" torchvision.datasets.{name}({str(root)!r}, download=True)"
    )
    with readable(f"{name} in '{root.absolute()}'", remedy=remedy):
        if not options.download:
            return getattr(datasets, name)(root, train=train)
        root.mkdir(parents=True, exist_ok=True)
        with (root / ".fetching").open("wb") as lock:  # that of a killed process is freed
            fcntl.flock(lock, fcntl.LOCK_EX)
            return getattr(datasets, name)(root, train=train, download=True)


@contextmanager
def readable(what: str, *, remedy: str) -> Iterator[None]:
    """Turn errors about missing or damaged files into a ``PlanError``.

    Raises:
        PlanError: what cannot be read, why, and what to do.
    """
    try:
        yield
    except (OSError, EOFError, RuntimeError, AssertionError, SyntaxError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PlanError(f"{what} cannot be read: {reason}; {remedy}") from error
