"""Where a workload's data is: the options that name it, the message that says what is missing, and downloads on request.

Labels are checked here when they are read: a wrong one would fail inside a kernel of the loss, which names no file.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator
from torch import Tensor

from measurement.errors import PlanError
from workloads.data.folders import below, files_named, readable
from workloads.data.input import InputOptions

Read = TypeVar("Read")
MAX_NAMES = 4
"""How many names a message lists at most."""
DAMAGED_PICKLE = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    struct.error,
    TypeError,
    ValueError,
)
"""What ``pickle`` raises on damaged bytes."""


def on_disk(path: Path) -> Path:
    """Put the home directory in the place of ``~`` or ``~user``; in any locale, find the name that a plan has in UTF-8."""
    try:
        expanded = path.expanduser()
    except RuntimeError:
        raise ValueError("the home directory is not known: no such user, or HOME is not set; write the whole path") from None
    in_utf8 = Path(os.fsdecode(str(expanded).encode("utf-8", "surrogateescape")))
    return expanded if in_utf8 == expanded or expanded.exists() else in_utf8


ExpandedPath = Annotated[Path, AfterValidator(on_disk)]


class DataOptions(InputOptions):
    """Options of a workload that reads files."""

    data_dir: ExpandedPath = Path("data")
    """Folder of the data; relative to the folder in which the run was started."""
    pretrained: ExpandedPath | None = None
    """State dict to start from, as ``torch.save(model.state_dict(), path)`` writes it. Weights are never downloaded."""
    new_head: bool = False
    """Leave out weights of ``pretrained`` for another number of classes. The last layer then starts anew."""


class FetchOptions(DataOptions):
    """Options of a workload whose data torchvision can download."""

    download: bool = False
    """Download missing data into ``data_dir``."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Files that a workload needs, all of them in one of several folders, or in an archive there."""

    workload: str
    root: Path
    """What ``data_dir`` says."""
    inside: tuple[str, ...]
    """Folders below it to look in, the preferred one first."""
    names: tuple[str, ...]
    remedy: str
    archives: tuple[str, ...] = ()
    """Archives of all files together; read where they are not unpacked."""

    @property
    def folders(self) -> list[Path]:
        """The folders to look in."""
        return [below(self.root, place) for place in self.inside]

    def find(self) -> dict[str, list[Path]] | None:
        """Return the files by name, from the first folder that has all: those of one name should hold the same.

        None if there is no such folder.

        Raises:
            PlanError: a folder cannot be read.
        """
        for folder in self.folders:
            found = {name: files for name in self.names if (files := files_named(folder, name))}
            if len(found) == len(self.names):
                return found
        packed = [file for folder in self.folders for name in self.archives for file in files_named(folder, name)]
        return dict.fromkeys(self.names, packed) if packed else None

    def require(self, fetch: Callable[[], None] | None = None) -> dict[str, list[Path]]:
        """Return the files by name. Call ``fetch`` first if files are missing.

        Raises:
            PlanError: no folder has all files.
        """
        found = self.find()
        if found is None and fetch is not None:
            with only_one_process(self.root):
                if self.find() is None:
                    fetch()
            found = self.find()
        if found is None:
            raise self._missing()
        return found

    def _missing(self) -> PlanError:
        places = " or ".join(f"'{folder.absolute()}'" for folder in self.folders)
        return missing(
            self.workload, f"{', '.join(self.names)} (or compressed) in {places}", folders=self.folders, remedy=self.remedy
        )


def first_whole(files: Sequence[Path], read: Callable[[Path], Read]) -> Read:
    """Read the first file that is whole: a half-written one may lie beside it.

    Raises:
        PlanError: none is; the message is that of the first.
    """
    refused: list[PlanError] = []
    for path in files:
        try:
            return read(path)
        except PlanError as error:
            refused.append(error)
    raise refused[0]


def missing(workload: str, expected: str, *, folders: Sequence[Path], remedy: str) -> PlanError:
    """Make the error for missing data: what was expected where, what was found, what to do."""
    found = "; ".join(map(describe, folders))
    return PlanError(f"workload '{workload}' finds no data: expected {expected}; found: {found}; {remedy}")


def describe(place: Path) -> str:
    """Say in a few words what is at a path."""
    with readable(place):
        if not place.exists():
            return f"'{place.absolute()}' does not exist"
        if not place.is_dir():
            return f"'{place.absolute()}' is a file"
        return f"'{place.absolute()}' holds {first_few(sorted(path.name for path in place.iterdir())) or 'nothing'}"


def first_few(names: Iterable[str]) -> str:
    """Join the first names of a list, and say how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - MAX_NAMES} more" if len(listed) > MAX_NAMES else ""
    return f"{', '.join(listed[:MAX_NAMES])}{more}"


@contextmanager
def only_one_process(folder: Path) -> Iterator[None]:
    """Hold a lock file in ``folder``: one process of this host at a time. The lock of a killed process is freed.

    Raises:
        PlanError: ``folder`` cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".fetching").open("wb")
    except OSError as error:
        raise PlanError(f"nothing can be fetched into '{folder.absolute()}': {error.strerror}; set data_dir elsewhere") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(name: str, root: Path) -> None:
    """Download a dataset of ``torchvision.datasets`` into ``root``, where torchvision would look for it.

    Raises:
        PlanError: it cannot be downloaded from here.
    """
    from torchvision import datasets

    try:
        getattr(datasets, name)(root, download=True)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PlanError(
            f"{name} cannot be downloaded into '{root.absolute()}': {reason}; fetch it on a machine with a network, "
            f"torchvision.datasets.{name}({str(root)!r}, download=True), and copy the folder"
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
            f"'{path}' holds label {int(labels[first])} at place {first} ({len(wrong)} of {len(labels)} are out of range); "
            f"labels are 0 to {num_classes - 1}"
        )
