"""A workload's data: the options that name it, its files, messages about missing ones, and
downloads.

Labels are checked here when they are read: a wrong one would fail inside a kernel of the loss,
without the file's name.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator
from torch import Tensor

from measurement.errors import PlanError
from workloads.data.input import InputOptions

MAX_NAMES = 4
"""How many names a message lists at most."""
HALF_WRITTEN = (".part", ".partial", ".crdownload", ".tmp", "~")
WORDS = {"train": "train(ing)?", "val": "val(id(ation)?)?|dev"}
"""How the folders and files of the two parts of a data set are named."""
GZIP = b"\x1f\x8b"


def on_disk(path: Path) -> Path:
    """Replace ``~`` or ``~user`` by the home directory; in any locale, find the UTF-8 name of a
    plan.
    """
    try:
        expanded = path.expanduser()
    except RuntimeError:
        raise ValueError(
            "the home directory is not known: no such user, or HOME is not set; write the whole"
            " path"
        ) from None
    in_utf8 = Path(os.fsdecode(str(expanded).encode("utf-8", "surrogateescape")))
    return expanded if in_utf8 == expanded or expanded.exists() else in_utf8


ExpandedPath = Annotated[Path, AfterValidator(on_disk)]


class DataOptions(InputOptions):
    """Options of a workload that reads files."""

    data_dir: ExpandedPath = Path("data")
    """Folder of the data; relative to the folder in which the run was started."""


class FetchOptions(DataOptions):
    """Options of a workload whose data torchvision can download."""

    download: bool = False
    """Download missing data into ``data_dir``."""


def require_files(
    names: Sequence[str],
    *,
    workload: str,
    options: FetchOptions,
    inside: Sequence[str],
    dataset: str,
) -> list[Path]:
    """Return files by their names, all of them in one of several folders.

    Download them first if the options say so.

    Args:
        names: published names of the files.
        workload: that needs them.
        options: that say where to look.
        inside: folders below ``data_dir``, the preferred one first.
        dataset: class of ``torchvision.datasets`` that can download them.

    Raises:
        PlanError: no folder has all of them, or one cannot be read.
    """
    folders = [options.data_dir / place for place in inside]

    def find() -> list[Path] | None:
        paths = ([file_named(folder, name) for name in names] for folder in folders)
        return next(
            ([file for file in files if file] for files in paths if None not in files), None
        )

    files = find()
    if files is None and options.download:
        with only_one_process(options.data_dir):
            if find() is None:
                fetch(dataset, options.data_dir)
        files = find()
    if files is None:
        places = " or ".join(f"'{folder.absolute()}'" for folder in folders)
        remedy = "set data_dir to where it is, or download: true to fetch it through torchvision"
        raise missing(
            workload, f"{', '.join(names)} (or .gz) in {places}", folders=folders, remedy=remedy
        )
    return files


def file_named(folder: Path, name: str) -> Path | None:
    """Find a file in a folder: by its name, as 7-Zip unpacks it (``.idx``), packed, or in a folder
    of that name, as from Kaggle.

    Raises:
        PlanError: the folder cannot be read.
    """
    spelt = (name, name.replace("-idx", ".idx"))
    places = (folder, *(folder / other for other in spelt))
    files = (
        place / f"{other}{suffix}" for suffix in ("", ".gz") for place in places for other in spelt
    )
    with readable(folder):
        return next((file for file in files if file.is_file()), None)


def entries(folder: Path) -> list[Path]:
    """Return the data in a folder, sorted; empty where there is no such folder.

    Hidden and half-written files are left out.

    Raises:
        PlanError: it cannot be read.
    """
    with readable(folder):
        try:
            return sorted(path for path in folder.iterdir() if is_data(path.name))
        except (FileNotFoundError, NotADirectoryError):
            return []


def is_data(name: str) -> bool:
    """Whether an entry of a folder is data by its name: neither hidden, nor a system's
    (``__MACOSX``), nor half-written.
    """
    return not name.startswith((".", "@", "__")) and not name.endswith(HALF_WRITTEN)


def part_of(paths: Sequence[Path], part: str, *, name: str) -> Path | None:
    """Choose the path of a data set's part, ``train`` or ``val``: the one called ``name``, else the
    only one with such a word.

    Raises:
        PlanError: there are several, and none has that name.
    """
    matching = [
        path
        for path in paths
        if re.search(rf"(?<![a-z])({WORDS[part]})(?![a-z])", path.name.lower())
    ]
    exact = [path for path in matching if path.name == name] or matching
    if len(exact) > 1:
        names = ", ".join(path.name for path in exact)
        raise PlanError(
            f"'{exact[0].parent}' holds several that may be {name}: {names}; keep one, or call it"
            f" {name}"
        )
    return exact[0] if exact else None


def read_whole(path: Path) -> bytes:
    """Read a file, and decompress it if its first bytes are those of gzip: browsers unpack files
    and keep their names.

    Raises:
        PlanError: it is damaged, or cannot be read.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(GZIP) else content
    except (OSError, EOFError, zlib.error) as error:
        raise PlanError(
            f"'{path}' cannot be read: {error or type(error).__name__}; fetch it again"
        ) from error


@contextmanager
def readable(place: Path) -> Iterator[None]:
    """Turn the system's error about a path that cannot be read into a ``PlanError``.

    Raises:
        PlanError: with the path and the reason.
    """
    try:
        yield
    except OSError as error:
        raise PlanError(
            f"'{place}' cannot be read: {error.strerror}; see its permissions, or set data_dir"
            " elsewhere"
        ) from error


def missing(workload: str, expected: str, *, folders: Sequence[Path], remedy: str) -> PlanError:
    """Make the error for missing data: what was expected where, what was found, what to do."""
    contents = "; ".join(map(describe, folders))
    return PlanError(
        f"workload '{workload}' finds no data: expected {expected}; found: {contents}; {remedy}"
    )


def describe(place: Path) -> str:
    """Describe briefly what is at a path."""
    with readable(place):
        if not place.exists():
            return f"'{place.absolute()}' does not exist"
        if not place.is_dir():
            return f"'{place.absolute()}' is a file"
        return (
            f"'{place.absolute()}' holds"
            f" {first_few(sorted(path.name for path in place.iterdir())) or 'nothing'}"
        )


def first_few(names: Iterable[str]) -> str:
    """Join the first names of a list, and say how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - MAX_NAMES} more" if len(listed) > MAX_NAMES else ""
    return f"{', '.join(listed[:MAX_NAMES])}{more}"


@contextmanager
def only_one_process(folder: Path) -> Iterator[None]:
    """Hold a lock file in ``folder``: one process of this host at a time.

    The lock of a killed process is freed.

    Raises:
        PlanError: ``folder`` cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".fetching").open("wb")
    except OSError as error:
        raise PlanError(
            f"nothing can be fetched into '{folder.absolute()}': {error.strerror}; set data_dir"
            " elsewhere"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(name: str, root: Path) -> None:
    """Download a dataset of ``torchvision.datasets`` into ``root``, where torchvision would look
    for it.

    Raises:
        PlanError: it cannot be downloaded from here.
    """
    from torchvision import datasets

    try:
        getattr(datasets, name)(root, download=True)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PlanError(
            f"{name} cannot be downloaded into '{root.absolute()}': {reason}; fetch it on a machine"
            f" with a network, torchvision.datasets.{name}({str(root)!r}, download=True), and copy"
            " the folder"
        ) from error


def check_labels(labels: Tensor, path: Path, *, num_classes: int) -> None:
    """Require that all labels are from 0 to ``num_classes`` - 1.

    Raises:
        PlanError: one is not. The message names the first one and its place.
    """
    wrong = ((labels < 0) | (labels >= num_classes)).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise PlanError(
            f"'{path}' holds label {int(labels[first])} at place {first} ({len(wrong)} of"
            f" {len(labels)} are out of range); labels are 0 to {num_classes - 1}"
        )
